/*
 * Hashes of what the scalar kernels computed on x86-64: the table's lines are printed by
 * `test_outputs print`, which also says what each case is.
 */
#ifndef QUIRE_TESTS_ENGINE_KERNELS_OUTPUTS_H
#define QUIRE_TESTS_ENGINE_KERNELS_OUTPUTS_H

#include <stdint.h>

struct output {
    char name[40];
    uint64_t hash;
};

static const struct output OUTPUTS[] = {
    {"matmul F32 plain", 0x12821b3f20e01335},
    {"matmul F32 wild", 0x785a448a37381867},
    {"matmul F32 broken", 0x67830e06d2d4fc0a},
    {"matmul F16 plain", 0x38e0b9581010579d},
    {"matmul F16 wild", 0xca62caa5a9c8dec4},
    {"matmul F16 broken", 0xbe85379ae1eb44ec},
    {"matmul BF16 plain", 0xd12870384ae3b4ab},
    {"matmul BF16 wild", 0x08600a061f91f012},
    {"matmul BF16 broken", 0x4278e481d10ef4b4},
    {"matmul Q4_0 plain", 0xc34673782b125c0d},
    {"matmul Q4_0 wild", 0xaf62b1198f5481f2},
    {"matmul Q4_0 broken", 0xb1b967adcfb895fd},
    {"matmul Q4_1 plain", 0xa2cdf261868e4151},
    {"matmul Q4_1 wild", 0xe9154cac98f05333},
    {"matmul Q4_1 broken", 0xf794a4fe06b21efc},
    {"matmul Q5_0 plain", 0x253acaa41da645f4},
    {"matmul Q5_0 wild", 0x116b338df1497023},
    {"matmul Q5_0 broken", 0x6ead48c2ad713d78},
    {"matmul Q5_1 plain", 0xf6772bf3dd247ca7},
    {"matmul Q5_1 wild", 0xfbe5c6d07613df2f},
    {"matmul Q5_1 broken", 0xa2284024739c315f},
    {"matmul Q8_0 plain", 0x33282391e3473277},
    {"matmul Q8_0 wild", 0xb0caa73c7fafdb06},
    {"matmul Q8_0 broken", 0xac35e63de68b1cce},
    {"matmul Q2_K plain", 0xe6f0e2fff88131f5},
    {"matmul Q2_K wild", 0x85dc152831a1be52},
    {"matmul Q2_K broken", 0xbb82444dfcd1c0dd},
    {"matmul Q3_K plain", 0x64c91b6436c1727d},
    {"matmul Q3_K wild", 0x918402eec24d61f3},
    {"matmul Q3_K broken", 0xfd7d48ad252da40d},
    {"matmul Q4_K plain", 0x9810002dfcaa23fa},
    {"matmul Q4_K wild", 0x9ebc4f22ffe3adea},
    {"matmul Q4_K broken", 0x6a8e101e84ab9d1c},
    {"matmul Q5_K plain", 0x96806a2238a74266},
    {"matmul Q5_K wild", 0x67549eced7bd9649},
    {"matmul Q5_K broken", 0xdc8863e6fdd6ebd3},
    {"matmul Q6_K plain", 0x8e40cb8cfabca93a},
    {"matmul Q6_K wild", 0x17fb7e354c8ea4ed},
    {"matmul Q6_K broken", 0x3ac25942d1867126},
    {"matmul IQ4_NL plain", 0x3b8951f5b42c8a44},
    {"matmul IQ4_NL wild", 0x461cf5cfd4d052c3},
    {"matmul IQ4_NL broken", 0x9179fcb83682013d},
    {"matmul IQ4_XS plain", 0x5e92bc254493ff57},
    {"matmul IQ4_XS wild", 0x6b0e008788d09396},
    {"matmul IQ4_XS broken", 0x22c3de926c663a82},
    {"rows plain", 0x4780b9864538513e},
    {"rows wild", 0x335a92ed83d78841},
    {"rows broken", 0x452ffda3bd6e8977},
    {"activations", 0xba698ab904c3134b},
    {"attention f16 64", 0x8e429b37a6fe9923},
    {"attention f16 96", 0xb73eb6a8c504e621},
    {"attention f32 64", 0xc2f05b61bf8a4409},
    {"attention f32 96", 0x989c661a5484e166},
    {"attention bf16 64", 0x5768ea9b8d406be4},
    {"attention bf16 96", 0x1ff80365020132dc},
    {"attention q8_0 64", 0xd33b6c6c5e665a15},
    {"attention q8_0 96", 0xea6874d6cac832fc},
    {"attention q4_0 64", 0xc650ff6b15edf960},
    {"attention q4_0 96", 0xde5a07c3b90fdc33},
    {"math", 0xd8c2feed73ed7b36},
    {"matmul MXFP4 plain", 0xbeec88be29447180},
    {"matmul MXFP4 wild", 0xcad60ce167c27319},
    {"matmul MXFP4 broken", 0xe5e1d9e7f77c4204},
    {"encoder plain", 0x404e5610b4b99acb},
    {"encoder wild", 0x9a0375dc44d67164},
    {"encoder broken", 0xfd010ab81ae865dd},
};

#endif
