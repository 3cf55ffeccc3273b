/*
 * exp, sin, cos, log, pow, tanh as our own polynomials in one form everywhere, so that every CPU
 * and every kernel gives the same bits. From libm only fmaf, fma, sqrtf and sqrt (exactly rounded).
 * Any thread.
 */
#ifndef QUIRE_ENGINE_KERNELS_MATH_H
#define QUIRE_ENGINE_KERNELS_MATH_H

#include <stdint.h>

float math_exp(
    float x); /* <= 2 ulp; exp(0) is exactly 1; -inf and x < -104 give 0; NaN stays NaN */
float math_silu(float x);     /* x / (1 + exp(-x)) */
float math_gelu(float x);     /* tanh form, as GGML's */
float math_gelu_erf(float x); /* x times the normal distribution's integral, as BERT has it */
float math_tanh(float x);
float math_log(float x); /* x > 0; <= 2 ulp */

/* For tables at load, in double, <= 1e-13 relative: */
double math_sin(double x);
double math_cos(double x);
double math_exp_double(double x);
double math_log_double(double x);
double math_pow(double base, double exponent); /* base > 0 */

float math_f16_to_f32(uint16_t bits);
uint16_t math_f32_to_f16(float value); /* nearest even; saturates to ±65504; NaN stays NaN */
float math_bf16_to_f32(uint16_t bits);
uint16_t math_f32_to_bf16(float value); /* nearest even; saturates to 0x7F7F; NaN stays NaN */

#endif
