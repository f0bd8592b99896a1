//! Keys in registers: they stay there until something else takes the register.

use std::arch::asm;

/// Clears the vector registers that kernels use on this processor.
pub(crate) fn clear_vectors() {
    // An instruction on a part of a register clears the rest, too, and long ones would slow some processors down.
    if is_x86_feature_detected!("avx512vl") {
        // SAFETY: the processor has the instructions, and all vector registers are declared to be overwritten.
        unsafe {
            asm!(
                "vpxord xmm16, xmm16, xmm16",
                "vpxord xmm17, xmm17, xmm17",
                "vpxord xmm18, xmm18, xmm18",
                "vpxord xmm19, xmm19, xmm19",
                "vpxord xmm20, xmm20, xmm20",
                "vpxord xmm21, xmm21, xmm21",
                "vpxord xmm22, xmm22, xmm22",
                "vpxord xmm23, xmm23, xmm23",
                "vpxord xmm24, xmm24, xmm24",
                "vpxord xmm25, xmm25, xmm25",
                "vpxord xmm26, xmm26, xmm26",
                "vpxord xmm27, xmm27, xmm27",
                "vpxord xmm28, xmm28, xmm28",
                "vpxord xmm29, xmm29, xmm29",
                "vpxord xmm30, xmm30, xmm30",
                "vpxord xmm31, xmm31, xmm31",
                "vzeroall",
                clobber_abi("sysv64"),
                options(nomem, nostack),
            );
        }
    } else if is_x86_feature_detected!("avx") {
        // SAFETY: as above.
        unsafe { asm!("vzeroall", clobber_abi("sysv64"), options(nomem, nostack)) };
    } else {
        // SAFETY: as above; every processor of this architecture has the instructions.
        unsafe {
            asm!(
                "pxor xmm0, xmm0",
                "pxor xmm1, xmm1",
                "pxor xmm2, xmm2",
                "pxor xmm3, xmm3",
                "pxor xmm4, xmm4",
                "pxor xmm5, xmm5",
                "pxor xmm6, xmm6",
                "pxor xmm7, xmm7",
                "pxor xmm8, xmm8",
                "pxor xmm9, xmm9",
                "pxor xmm10, xmm10",
                "pxor xmm11, xmm11",
                "pxor xmm12, xmm12",
                "pxor xmm13, xmm13",
                "pxor xmm14, xmm14",
                "pxor xmm15, xmm15",
                clobber_abi("sysv64"),
                options(nomem, nostack),
            );
        }
    }
}
