// Each element of the output is made of those of its place. One pass over memory, 16 bytes at a time where all operands
// lie so.
#include "device.cuh"

// What is computed of one number; crates/cuda/src/lower/element_wise.rs has the same list.
enum One {
    RELU = 0,
    SIGMOID,
    TANH,
    // times a
    SCALE,
    GELU,
    GELU_TANH,
    SILU,
    SOFTPLUS,
    EXP,
    LOG,
    SQRT,
    RSQRT,
    // to the power of a
    POW,
    ABS,
    NEG,
    // between a and b
    CLAMP,
};

// Of two. From here on the first flows back, and the second is the function's argument, or its value.
enum Two {
    ADD = 0,
    SUB,
    MUL,
    DIV,
    RELU_GRAD = 16,
    SIGMOID_GRAD,
    TANH_GRAD,
    // 16 + what is in One, for the functions from GELU on
};

template <class T> DEVICE T gelu_argument(T x) {
    return T(0.7978845608028654) * (x + T(0.044715) * x * x * x);
}

// The distribution function of the standard normal distribution.
template <class T> DEVICE T normal(T x) { return T(0.5) * (T(1) + erf_of(x * T(0.7071067811865476))); }

// Not the first four, which are a few instructions each. Where it is worth it this is called and not copied.
template <class T> DEVICE_CALL T value_of(i64 by, T x, T a, T b) {
    switch (by) {
    case SIGMOID:
        return sigmoid(x);
    case TANH:
        return tanh_of(x);
    case GELU:
        return x * normal(x);
    case GELU_TANH:
        return T(0.5) * x * (T(1) + tanh_of(gelu_argument(x)));
    case SILU:
        return x * sigmoid(x);
    case SOFTPLUS:
        return (x > T(0) || is_nan(x) ? x : T(0)) + log1p_of(exp_of(-abs_of(x)));
    case EXP:
        return exp_of(x);
    case LOG:
        return log_of(x);
    case SQRT:
        return sqrt_of(x);
    case RSQRT:
        return T(1) / sqrt_of(x);
    case POW:
        return pow_of(x, a);
    case ABS:
        return abs_of(x);
    case NEG:
        return -x;
    default: {
        T y = x < a ? a : x;
        return y > b ? b : y;
    }
    }
}

// The derivative: of the value where that is simpler (Exp, Sqrt, Rsqrt).
template <class T> DEVICE_CALL T slope_of(i64 by, T of, T a, T b) {
    switch (by) {
    case GELU:
        return normal(of) + of * (exp_of(T(-0.5) * of * of) / T(2.5066282746310002));
    case GELU_TANH: {
        T squashed = tanh_of(gelu_argument(of));
        T rise = T(1) - squashed * squashed;
        T inner = T(0.7978845608028654) * (T(1) + T(3.0 * 0.044715) * of * of);
        T rising = rise == T(0) ? T(0) : of * rise * inner;
        return T(0.5) * (T(1) + squashed + rising);
    }
    case SILU: {
        T s = sigmoid(of);
        return s * (T(1) + of * (T(1) - s));
    }
    case SOFTPLUS:
        return sigmoid(of);
    case EXP:
        return of;
    case LOG:
        return T(1) / of;
    case SQRT:
        return T(0.5) / of;
    case RSQRT:
        return T(-0.5) * (of * of * of);
    case POW:
        // a is the exponent, b one less
        return a == T(0) ? T(0) : a * pow_of(of, b);
    case ABS:
        return of < T(0) ? T(-1) : of > T(0) ? T(1) : T(0);
    case NEG:
        return T(-1);
    default:
        return of >= a && of <= b ? T(1) : T(0);
    }
}

// As many numbers as are computed at a time.
template <class T, i32 N> struct Several {
    static const i32 COUNT = N;
    T at[N];
};

template <class S, i32 N> DEVICE void get(const S *from, Several<T_OF(S), N> &numbers) {
    UNROLL for (i32 k = 0; k < N; k++) numbers.at[k] = load(from[k]);
}

template <class S, i32 N> DEVICE void put(const Several<T_OF(S), N> &numbers, S *to) {
    UNROLL for (i32 k = 0; k < N; k++) store(to + k, numbers.at[k]);
}

// f(numbers of x, place) makes those of y at that place. x may be y.
template <class S, class F> DEVICE void map(i64 count, const S *x, S *y, F f) {
    const i32 WIDE = Pack<S>::COUNT;
    i64 packs = fits_packs(x) && fits_packs(y) ? count / WIDE : 0;
    UNROLL_BY(1) for (i64 p = thread_in_grid(); p < packs; p += threads_of_grid()) {
        Pack<S> pack = ((const Pack<S> *)x)[p];
        Several<T_OF(S), WIDE> numbers;
        get(pack.at, numbers);
        f(numbers, p * WIDE);
        put(numbers, pack.at);
        ((Pack<S> *)y)[p] = pack;
    }
    UNROLL_BY(1) for (i64 i = packs * WIDE + thread_in_grid(); i < count; i += threads_of_grid()) {
        Several<T_OF(S), 1> number;
        get(x + i, number);
        f(number, i);
        put(number, y + i);
    }
}

// f(numbers of a, those of b) makes of the first those of y.
template <class S, class F> DEVICE void map(i64 count, const S *a, const S *b, S *y, F f) {
    const i32 WIDE = Pack<S>::COUNT;
    i64 packs = fits_packs(a) && fits_packs(b) && fits_packs(y) ? count / WIDE : 0;
    UNROLL_BY(1) for (i64 p = thread_in_grid(); p < packs; p += threads_of_grid()) {
        Pack<S> left = ((const Pack<S> *)a)[p], right = ((const Pack<S> *)b)[p];
        Several<T_OF(S), WIDE> numbers, others;
        get(left.at, numbers);
        get(right.at, others);
        f(numbers, others);
        put(numbers, left.at);
        ((Pack<S> *)y)[p] = left;
    }
    UNROLL_BY(1) for (i64 i = packs * WIDE + thread_in_grid(); i < count; i += threads_of_grid()) {
        Several<T_OF(S), 1> number, other;
        get(a + i, number);
        get(b + i, other);
        f(number, other);
        put(number, y + i);
    }
}

// Each of them: `x` is the number, which becomes the expression. `y` is the one beside it.
#define EACH(expression) \
    { \
        UNROLL for (i32 k = 0; k < N::COUNT; k++) { \
            auto &x = numbers.at[k]; \
            x = expression; \
        } \
        break; \
    }
#define EACH_OF_TWO(expression) \
    { \
        UNROLL for (i32 k = 0; k < N::COUNT; k++) { \
            auto &x = numbers.at[k]; \
            auto y = others.at[k]; \
            x = expression; \
        } \
        break; \
    }

struct MapOne {
    i64 by;
    i64 count;
    const void *x;
    void *y;
    double a;
    double b;
};

template <class T> struct OfOne {
    i64 by;
    T a, b;
    template <class N> DEVICE_IN void operator()(N &numbers, i64) const {
        switch (by) {
        case RELU:
            // a NaN stays
            EACH(x <= T(0) ? T(0) : x)
        case SCALE:
            EACH(x *a)
        default:
            EACH(value_of<T>(by, x, a, b))
        }
    }
};

template <class S> DEVICE void map_one(const MapOne &a) {
    typedef T_OF(S) T;
    map(a.count, (const S *)a.x, (S *)a.y, OfOne<T>{a.by, (T)a.a, (T)a.b});
}
OF_FLOATS(KERNEL_OF, map_one, MapOne)

struct MapTwo {
    i64 by;
    i64 count;
    const void *first;
    const void *second;
    void *y;
    double a;
    double b;
};

template <class T> struct OfTwo {
    i64 by;
    T a, b;
    template <class N> DEVICE_IN void operator()(N &numbers, const N &others) const {
        switch (by) {
        case ADD:
            EACH_OF_TWO(x + y)
        case SUB:
            EACH_OF_TWO(x - y)
        case MUL:
            EACH_OF_TWO(x *y)
        case DIV:
            EACH_OF_TWO(x / y)
        case RELU_GRAD:
            EACH_OF_TWO(y > T(0) ? x : T(0))
        case SIGMOID_GRAD:
            EACH_OF_TWO(x *y *(T(1) - y))
        case TANH_GRAD:
            EACH_OF_TWO(x *(T(1) - y * y))
        default:
            EACH_OF_TWO(x *slope_of<T>(by - 16, y, a, b))
        }
    }
};

template <class S> DEVICE void map_two(const MapTwo &a) {
    typedef T_OF(S) T;
    map(a.count, (const S *)a.first, (const S *)a.second, (S *)a.y, OfTwo<T>{a.by, (T)a.a, (T)a.b});
}
OF_FLOATS(KERNEL_OF, map_two, MapTwo)

struct BiasAdd {
    i64 count;
    i64 columns;
    const void *x;
    const void *bias;
    void *y;
};

template <class S> struct AddBias {
    const S *bias;
    i64 columns;
    template <class N> DEVICE_IN void operator()(N &numbers, i64 at) const {
        i64 column = at % columns;
        UNROLL for (i32 k = 0; k < N::COUNT; k++) {
            numbers.at[k] += load(bias[column]);
            column = column + 1 == columns ? 0 : column + 1;
        }
    }
};

template <class S> DEVICE void bias_add(const BiasAdd &a) {
    map(a.count, (const S *)a.x, (S *)a.y, AddBias<S>{(const S *)a.bias, a.columns});
}
OF_FLOATS(KERNEL_OF, bias_add, BiasAdd)

struct ScaleBy {
    i64 count;
    const void *x;
    const void *by;
    void *y;
};

template <class S> DEVICE void scale_by(const ScaleBy &a) {
    typedef T_OF(S) T;
    map(a.count, (const S *)a.x, (S *)a.y, OfOne<T>{SCALE, load(*(const S *)a.by), T(0)});
}
OF_FLOATS(KERNEL_OF, scale_by, ScaleBy)

struct Dropout {
    i64 count;
    const void *x;
    const i64 *step;
    void *y;
    u64 key;
    // of what is drawn for an element, from which on it is kept
    u64 threshold;
    // the part that is kept
    double kept;
};

// The output function of SplitMix64.
DEVICE u64 mix(u64 z) {
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

template <class T> struct Drop {
    u64 drawn, threshold;
    T kept;
    template <class N> DEVICE_IN void operator()(N &numbers, i64 at) const {
        UNROLL for (i32 k = 0; k < N::COUNT; k++) {
            bool keeps = mix(drawn + (u64)(at + k)) >= threshold;
            numbers.at[k] = keeps ? numbers.at[k] / kept : T(0);
        }
    }
};

template <class S> DEVICE void dropout(const Dropout &a) {
    u64 drawn = mix(a.key ^ (u64)*a.step * 0x9e3779b97f4a7c15ull);
    map(a.count, (const S *)a.x, (S *)a.y, Drop<T_OF(S)>{drawn, a.threshold, (T_OF(S))a.kept});
}
OF_FLOATS(KERNEL_OF, dropout, Dropout)

// The sum of several tensors, times a share.
struct Fold {
    i64 count;
    void *y;
    i64 narrow;
    // 1/share
    i64 ranks;
    Parts parts;
};

template <class T> DEVICE void fold(const Fold &a) {
    T share = T(1) / T((double)a.ranks);
    Into<T> y = {a.y, a.narrow, 0};
    UNROLL_BY(1) for (i64 i = thread_in_grid(); i < a.count; i += threads_of_grid())
        y.put(i, folded<T>(a.parts, i) * share);
}
OF_REALS(KERNEL_OF, fold, Fold)

struct Fill {
    i64 count;
    void *y;
    u64 bits;
};

template <class W> DEVICE void fill(const Fill &a) {
    UNROLL_BY(1) for (i64 i = thread_in_grid(); i < a.count; i += threads_of_grid()) ((W *)a.y)[i] = (W)a.bits;
}
OF_WIDTHS(KERNEL_OF, fill, Fill)

struct Cast {
    i64 count;
    const void *x;
    void *y;
};

DEVICE void convert(float x, float *y) { *y = x; }
DEVICE void convert(float x, double *y) { *y = (double)x; }
DEVICE void convert(float x, bf16 *y) { *y = round_bf16(x); }
DEVICE void convert(double x, float *y) { *y = (float)x; }
DEVICE void convert(double x, double *y) { *y = x; }
// By way of a float that is rounded to odd, so that nothing is rounded twice (Boldo and Melquiond 2008).
DEVICE void convert(double x, bf16 *y) {
    float near = (float)x;
    if (is_nan(x) || (double)near == x) {
        *y = round_bf16(near);
    } else {
        u32 beyond = fabs((double)near) > fabs(x) ? 1 : 0;
        *y = round_bf16(float_of((bits_of(near) - beyond) | 1u));
    }
}

template <class S, class D> DEVICE void cast(const Cast &a) {
    UNROLL_BY(1) for (i64 i = thread_in_grid(); i < a.count; i += threads_of_grid())
        convert(load(((const S *)a.x)[i]), (D *)a.y + i);
}
KERNEL_OF(cast, f32_f64, Cast, float, double)
KERNEL_OF(cast, f32_bf16, Cast, float, bf16)
KERNEL_OF(cast, f64_f32, Cast, double, float)
KERNEL_OF(cast, f64_bf16, Cast, double, bf16)
KERNEL_OF(cast, bf16_f32, Cast, bf16, float)
KERNEL_OF(cast, bf16_f64, Cast, bf16, double)

struct Select {
    i64 count;
    const void *a;
    // nothing is 0
    const void *b;
    const u8 *condition;
    void *y;
    i64 holds;
};

template <class S> DEVICE void select(const Select &args) {
    const S *a = (const S *)args.a, *b = (const S *)args.b;
    S zero = {};
    UNROLL_BY(1) for (i64 i = thread_in_grid(); i < args.count; i += threads_of_grid()) {
        bool takes = (args.condition[i] != 0) == (args.holds != 0);
        ((S *)args.y)[i] = takes ? a[i] : b ? b[i] : zero;
    }
}
KERNEL_OF(select, 2, Select, u16)
KERNEL_OF(select, 4, Select, u32)
KERNEL_OF(select, 8, Select, u64)
