// What every kernel stands on: types, numbers in storage and in registers, functions of both precisions, sums over a warp
// and a block, faults. Compiled by a GPU's compiler, and by a C++ compiler with shim/cuda.hpp before it.
//
// A kernel takes one structure by value, all of whose fields are 8 bytes. Products and sums are not fused but where
// `fused` says so, so that both compilers give the same bits.
#pragma once

typedef signed int i32;
typedef unsigned int u32;
typedef signed long long i64;
typedef unsigned long long u64;
typedef unsigned char u8;
typedef unsigned short u16;

#ifndef SHIM
#define DEVICE static __device__ __forceinline__
#define DEVICE_IN __device__ __forceinline__
#define DEVICE_OF __device__ __forceinline__
#define DEVICE_CALL static __device__ __noinline__
#define KERNEL(kernel, Args) \
    extern "C" __global__ void __launch_bounds__(256) kernel(const __grid_constant__ Args a)
#define BLOCK_KERNEL KERNEL
// One of a template, by name. Threads of a BLOCK_KERNEL meet at barriers, those of a KERNEL never do.
#define KERNEL_OF(kernel, suffix, Args, ...) \
    extern "C" __global__ void __launch_bounds__(256) kernel##_##suffix(const __grid_constant__ Args a) { \
        kernel<__VA_ARGS__>(a); \
    }
#define BLOCK_KERNEL_OF KERNEL_OF
#define UNROLL _Pragma("unroll")
#define PRAGMA(words) _Pragma(#words)
#define UNROLL_BY(n) PRAGMA(unroll n)
#define SHARED(Type, name) __shared__ Type name
// Threads of a GPU that have nothing to keep take no time of the others; on a processor each takes its own.
#define IDLE_ON_CPU(is_idle) false
#endif

#define OF_FLOATS(define, kernel, Args) \
    define(kernel, f32, Args, float) define(kernel, f64, Args, double) define(kernel, bf16, Args, bf16)
#define OF_REALS(define, kernel, Args) define(kernel, f32, Args, float) define(kernel, f64, Args, double)
#define OF_WIDTHS(define, kernel, Args) \
    define(kernel, 1, Args, u8) define(kernel, 2, Args, u16) define(kernel, 4, Args, u32) define(kernel, 8, Args, u64)

// Within an argument of a macro.
#define COMMA ,

const i32 WARP = 32;
const i32 THREADS = 256;

// The upper half of a float.
struct bf16 {
    u16 bits;
};

// What numbers in storage S are computed in.
template <class S> struct Computed {
    typedef S T;
};
template <> struct Computed<bf16> {
    typedef float T;
};
#define T_OF(S) typename Computed<S>::T

DEVICE u32 bits_of(float x) { return __float_as_uint(x); }
DEVICE float float_of(u32 bits) { return __uint_as_float(bits); }

DEVICE float load(float x) { return x; }
DEVICE double load(double x) { return x; }
DEVICE float load(bf16 x) { return float_of((u32)x.bits << 16); }

// Rounded to nearest even. A NaN stays one.
DEVICE bf16 round_bf16(float x) {
    bf16 y;
#ifdef SHIM
    u32 bits = bits_of(x);
    bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    y.bits = (u16)(nan ? bits >> 16 | 0x40u : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
#else
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#endif
    return y;
}

// Numbers of memory that are computed in T: they are kept so, or, where they are narrow, as bf16. From element `first` on.
template <class T> struct From {
    const void *at;
    i64 narrow;
    i64 first;
    DEVICE_IN T operator[](i64 i) const;
};
template <> DEVICE_OF float From<float>::operator[](i64 i) const {
    return narrow ? load(((const bf16 *)at)[first + i]) : ((const float *)at)[first + i];
}
template <> DEVICE_OF double From<double>::operator[](i64 i) const { return ((const double *)at)[first + i]; }

// Numbers that are multiplied: as of From, where `narrow` is 0 or 1; 2: kept as T, and rounded to TF32 before; 3: to bf16.
template <class T> struct Factors {
    const void *at;
    i64 narrow;
    i64 first;
    DEVICE_IN T operator[](i64 i) const;
};

// Rounded to nearest, away from zero where two are as near (cvt.rna.tf32). What is not finite stays as it is.
DEVICE float round_tf32(float x) {
    u32 bits = bits_of(x);
    return (bits & 0x7f800000u) == 0x7f800000u ? x : float_of((bits + 0x1000u) & ~0x1fffu);
}

DEVICE float rounded(float x, i64 narrow) {
    if (narrow == 2) return round_tf32(x);
    return narrow == 3 ? load(round_bf16(x)) : x;
}
DEVICE double rounded(double x, i64) { return x; }

template <> DEVICE_OF float Factors<float>::operator[](i64 i) const {
    return narrow == 1 ? load(((const bf16 *)at)[first + i]) : rounded(((const float *)at)[first + i], narrow);
}
template <> DEVICE_OF double Factors<double>::operator[](i64 i) const { return ((const double *)at)[first + i]; }

template <class T> struct Into {
    void *at;
    i64 narrow;
    i64 first;
    DEVICE_IN void put(i64 i, T x) const;
};
template <> DEVICE_OF void Into<float>::put(i64 i, float x) const {
    if (narrow) {
        ((bf16 *)at)[first + i] = round_bf16(x);
    } else {
        ((float *)at)[first + i] = x;
    }
}
template <> DEVICE_OF void Into<double>::put(i64 i, double x) const { ((double *)at)[first + i] = x; }

DEVICE void store(float *at, float x) { *at = x; }
DEVICE void store(double *at, double x) { *at = x; }
DEVICE void store(bf16 *at, float x) { *at = round_bf16(x); }

// As many elements as 16 bytes hold.
template <class S> struct alignas(16) Pack {
    static const i32 COUNT = 16 / sizeof(S);
    S at[16 / sizeof(S)];
};

DEVICE bool fits_packs(const void *a) { return ((u64)a & 15) == 0; }

// This thread among those of the grid, and how many there are: kernels stride over what they do.
DEVICE i64 thread_in_grid() { return (i64)blockIdx.x * THREADS + threadIdx.x; }
DEVICE i64 threads_of_grid() { return (i64)gridDim.x * THREADS; }

DEVICE i32 lane() { return (i32)threadIdx.x % WARP; }
DEVICE i32 warp() { return (i32)threadIdx.x / WARP; }

DEVICE i64 least(i64 a, i64 b) { return a < b ? a : b; }

// Functions of both precisions. Those of f64 are long, and called.
DEVICE float exp_of(float x) { return expf(x); }
DEVICE_CALL double exp_of(double x) { return exp(x); }
DEVICE float log_of(float x) { return logf(x); }
DEVICE_CALL double log_of(double x) { return log(x); }
DEVICE float log1p_of(float x) { return log1pf(x); }
DEVICE_CALL double log1p_of(double x) { return log1p(x); }
DEVICE float tanh_of(float x) { return tanhf(x); }
DEVICE_CALL double tanh_of(double x) { return tanh(x); }
DEVICE float erf_of(float x) { return erff(x); }
DEVICE_CALL double erf_of(double x) { return erf(x); }
DEVICE float sqrt_of(float x) { return sqrtf(x); }
DEVICE double sqrt_of(double x) { return sqrt(x); }
DEVICE float pow_of(float x, float y) { return powf(x, y); }
DEVICE_CALL double pow_of(double x, double y) { return pow(x, y); }
DEVICE float abs_of(float x) { return fabsf(x); }
DEVICE double abs_of(double x) { return fabs(x); }
// a·b + c, rounded once.
DEVICE float fused(float a, float b, float c) { return fmaf(a, b, c); }
DEVICE double fused(double a, double b, double c) { return fma(a, b, c); }

template <class T> DEVICE bool is_nan(T x) { return x != x; }
template <class T> DEVICE T sigmoid(T x) { return T(1) / (T(1) + exp_of(-x)); }
// NaN where one is; of equals the first.
template <class T> DEVICE T larger(T most, T x) { return x > most || is_nan(x) ? x : most; }

template <class T> DEVICE T infinity();
template <> DEVICE_OF float infinity<float>() { return float_of(0x7f800000u); }
template <> DEVICE_OF double infinity<double>() { return (double)float_of(0x7f800000u); }

// Over a warp, the same at all of its threads.
template <class T> DEVICE T warp_sum(T x) {
    UNROLL for (i32 apart = WARP / 2; apart > 0; apart /= 2) x += __shfl_xor_sync(0xffffffffu, x, apart);
    return x;
}
template <class T> DEVICE T warp_max(T x) {
    UNROLL for (i32 apart = WARP / 2; apart > 0; apart /= 2) {
        T other = __shfl_xor_sync(0xffffffffu, x, apart);
        x = other > x ? other : x;
    }
    return x;
}

// Threads that work on one row: a warp, or a block, which needs memory to meet.
template <class T> struct Meeting {
    T of_warp[THREADS / WARP];
};
struct ByWarp {
    static const i32 SIZE = WARP;
    // The first row of these threads, and how many rows are worked on at a time.
    static DEVICE_IN i64 first() { return (i64)blockIdx.x * (THREADS / WARP) + warp(); }
    static DEVICE_IN i64 step() { return (i64)gridDim.x * (THREADS / WARP); }
    static DEVICE_IN i32 place() { return lane(); }
    template <class T> static DEVICE_IN T sum(T x, Meeting<T> &) { return warp_sum(x); }
    template <class T> static DEVICE_IN T max(T x, Meeting<T> &) { return warp_max(x); }
};
struct ByBlock {
    static const i32 SIZE = THREADS;
    static DEVICE_IN i64 first() { return blockIdx.x; }
    static DEVICE_IN i64 step() { return gridDim.x; }
    static DEVICE_IN i32 place() { return (i32)threadIdx.x; }
    template <class T> static DEVICE_IN T sum(T x, Meeting<T> &meeting) {
        x = warp_sum(x);
        __syncthreads();
        if (lane() == 0) meeting.of_warp[warp()] = x;
        __syncthreads();
        x = meeting.of_warp[0];
        UNROLL for (i32 i = 1; i < THREADS / WARP; i++) x += meeting.of_warp[i];
        return x;
    }
    template <class T> static DEVICE_IN T max(T x, Meeting<T> &meeting) {
        x = warp_max(x);
        __syncthreads();
        if (lane() == 0) meeting.of_warp[warp()] = x;
        __syncthreads();
        x = meeting.of_warp[0];
        UNROLL for (i32 i = 1; i < THREADS / WARP; i++) x = meeting.of_warp[i] > x ? meeting.of_warp[i] : x;
        return x;
    }
};

// What a kernel found wrong first.
struct Fault {
    u64 code;
    i64 place;
    i64 value;
};

DEVICE void report(Fault *fault, u64 code, i64 place, i64 value) {
    if (atomicCAS(&fault->code, 0ull, code) == 0) {
        fault->place = place;
        fault->value = value;
    }
}

// Gradients of several ranks, or other tensors that are added in their order.
struct Parts {
    // What those before them come to, which is not narrow; nothing where these are the first.
    const void *before;
    i64 narrow;
    i64 count;
    const void *at[32];
};

// Element i of their sum.
template <class T> DEVICE T folded(const Parts &parts, i64 i) {
    T sum = parts.before ? ((const T *)parts.before)[i] : From<T>{parts.at[0], parts.narrow, 0}[i];
    UNROLL_BY(1) for (i64 part = parts.before ? 0 : 1; part < parts.count; part++)
        sum += From<T>{parts.at[part], parts.narrow, 0}[i];
    return sum;
}
