"""What a launch should have been told, by the plan of the problem that it is."""

from nkiconv import ConvProblem, plan

DTYPE = "fp32"
#: Kernels for gradients of filters: of any, and of those of depthwise rows.
FILTERS = ("conv_weight_gradient", "depthwise_conv1d_weight_gradient")


def problem_of(launch):
    """The ConvProblem of a launch on unpermuted fp32 images."""
    told = launch.constants
    N, C, H, W = launch.shapes["img_ref"]
    filters = told["filter_shape"] if launch.kernel in FILTERS else launch.shapes["filter_ref"]
    if launch.kernel.startswith("conv_transpose"):
        groups = told["feature_group_count"]
        return ConvProblem.transpose(
            N=N, C=C, H=H, W=W, K=filters[1] * groups, taps=filters[2:], groups=groups, stride=told["stride"],
            padding=told["padding"], output_padding=(0, 0), dilation=told["dilation"], dtype=DTYPE,
        )  # fmt: skip
    K = filters[0] if len(filters) == 4 else filters[0] * filters[4]
    return ConvProblem(
        N=N, C=C, H=H, W=W, K=K, R=filters[2], S=filters[3], groups=told["feature_group_count"], stride=told["stride"],
        padding=told["padding"], rhs_dilation=told["rhs_dilation"], lhs_dilation=told["lhs_dilation"],
        transposed=told.get("flipped", False), dtype=DTYPE,
    )  # fmt: skip


def follows_plan(launch):
    told = launch.constants
    if launch.kernel in FILTERS:
        more = {"direction": "wgrad", "bias": told.get("bias_gradient", False)}
    else:
        more = {
            "bias": "bias" in launch.shapes,
            "activation": told.get("activation"),
            "residual": told.get("residual_position") if "residual" in launch.shapes else None,
            "initial_state": "initial_state" in launch.shapes,
            "return_final_state": told.get("return_final_state", False),
            "strict_nonfinite": told.get("strict_nonfinite", False),
            "packed": len(launch.shapes["filter_ref"]) == 5,
            "operation": launch.kernel.removesuffix("_implicit_gemm"),
        }
    found = plan(problem_of(launch), launch.lnc, **more)
    return (told["algorithm"], told["config"]) == (found.algorithm, found.config)
