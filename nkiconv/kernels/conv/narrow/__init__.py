"""M packing with shift-and-add (kn2row): few output channels share the columns with taps and rows of y."""
