"""Patterns for the names of library kernels, in addition to the words in `kernel_words.txt`."""

from __future__ import annotations

import re

__all__ = ["FAMILIES", "SPECIAL_WORDS"]

FAMILIES = re.compile(
    r"""(?:at|at_cuda_detail|c10|cub|thrust|rocprim|hipcub|cute|cudnn|cublas(?:Lt)?|flash|ck|ck_tile
        |cutlass(?:_cudnn)?(?:_infer|_train)?|cask_cudnn(?:_infer|_train)?|pytorch_flash)::
    |cutlass_(?:\d\d_)?(?:simt|tensorop|wmma)\w*\Z
    |(?:maxwell|pascal|volta|turing|ampere|hopper|blackwell)_\w+\Z
    |(?:cudnn_)?(?:infer_|train_)?(?:maxwell|volta|turing|ampere)_scudnn_\w+\Z
    |sm\d\d\d?_xmma_\w+\Z
    |nvjet_\w+\Z
    |batched_transpose_\w+\Z
    |transpose_(?:NCHW2CNHW|CNHW2NCHW)_\w+\Z
    |internal::gemvx::kernel\Z
    |nccl(?:Dev)?Kernel_\w+\Z
    |fmha_(?:cutlass[BF]|v2)_\w+\Z
    |Cijk_A[ijkl]+_B[ijkl]+_\w+\Z
    |MIOpen\w+\Z
    |igemm_(?:fwd|bwd|wrw)_\w+\Z
    |gem[mv]\w+_kernel(?:_val)?\Z
    |(?:nchw|nhwc|foldedNhwc)To(?:Nchw|Nhwc|FoldedNhwc)Kernel\Z""",
    re.VERBOSE,
)
"""Beginnings and forms of the stems of library kernels."""
SPECIAL_WORDS = (
    r"(?P<special>BFloat16|c10|b?f16|f32|f64|tf32|fp(?:4|8|16|32|64)|e4m3(?:fn)?|e5m2|e8m0"
    r"|[us](?:8|16|32|64)|u?int(?:8|16|32|64)_t|[scdzih](?:\d{3,6})?gemm|gcgemm|gemmk1|gemmSN"
    r"|s\d{3,6}(?=fprop|dgrad|wgrad)|[cr]2[cr]|f2f|ldg\d{1,2}|lds\d{1,3}|sm\d{2,3}[af]?"
    r"|im2col(?:[1-4]d)?|[1-4][dD](?![a-z])|2cta|tile\d{3}t|(?<=_)\d{1,3}x(?=_|\Z)"
    r"|nhwckrsc|nchw|nhwc|NCHW|NHWC|CNHW|Nchw|Nhwc|1C11|NLL|KV|SoftMax|MIOpen|MT(?=\d)"
    r"|LL(?:128)?(?![A-Za-z])|Cijk|Ailk|Alik|Bjlk|Bljk"
    r"|(?<=_)(?:B|S|BS|SB|BBS|BH|AS|HA|HAS|HHS|HSS|SAV)(?=_|\Z)"
    r"|(?<=_)(?:[ntNT]{1,3}|[vhk]|[vV]\d|g\d{1,2}|k\d{2,3})(?=_|\Z)"
    r"|(?<=gemv2)[NT](?=_)|(?<=gemv)NSP|(?<=[sS]plit)K|(?<=cutlass)[BF](?=_)"
    r"|(?<=align)[ac](?=\d)|(?<=coop)[AB](?=_|\Z)|B(?=Offsets)|(?<=strided)B(?=_)|(?<=Convertd)Q"
    r"|(?<=nvjet_)(?:tst|sst|hsh|sss|tss|hss|qqtst|qrtst|rqsss|rrtst|qqsss)(?=_))"
)
"""Types, layouts and shapes that are no words, with what has to stand beside them."""
