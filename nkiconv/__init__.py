"""nkiconv: convolutions for AWS Trainium, as NKI kernels that run on trn2 and in a simulator on any machine."""
