// Variables that change in place: one pass over the gradients of all ranks, the slots and the variable.
#include "rule.cuh"

// Counts a step, and writes 1 − βᵗ of both betas.
struct CountStep {
    i64 *steps;
    double *bias;
    double first;
    double second;
};

KERNEL(count_step, CountStep) {
    if (thread_in_grid() != 0) return;
    i64 steps = *a.steps == 0x7fffffffffffffffll ? *a.steps : *a.steps + 1;
    *a.steps = steps;
    a.bias[0] = 1.0 - pow_of(a.first, (double)steps);
    a.bias[1] = 1.0 - pow_of(a.second, (double)steps);
}

struct Apply {
    i64 count;
    void *v;
    i64 narrow;
    // slots are not narrow
    void *slot;
    void *other;
    i64 ranks;
    // by what gradients are clipped, or nothing
    const double *clip;
    Rule rule;
    Parts gradients;
};

// What g is, but for the decay.
template <class T> DEVICE T gradient(const Apply &a, T share, T clip, i64 i) {
    return folded<T>(a.gradients, i) * share * clip;
}

template <class T> DEVICE void apply(const Apply &a) {
    Numbers<T> by(a.rule);
    T share = T(1) / T((double)a.ranks), clip = a.clip ? (T)*a.clip : T(1);
    From<T> v = {a.v, a.narrow, 0};
    UNROLL_BY(1) for (i64 i = thread_in_grid(); i < a.count; i += threads_of_grid()) {
        T g = gradient(a, share, clip, i);
        Into<T>{a.v, a.narrow, 0}.put(i, moved(by, v[i], g, (T *)a.slot, (T *)a.other, i));
    }
}
OF_REALS(KERNEL_OF, apply, Apply)

// LAMB: first the moments, and of each block Σv² and Σr² of what v moves along.
struct LambMoments {
    double *norms;
    Apply update;
};

template <class T> DEVICE void lamb_moments(const LambMoments &args) {
    SHARED(Meeting<double>, meeting);
    const Apply &a = args.update;
    Numbers<T> by(a.rule);
    T share = T(1) / T((double)a.ranks), clip = a.clip ? (T)*a.clip : T(1);
    double of_v = 0, of_r = 0;
    UNROLL_BY(1) for (i64 i = thread_in_grid(); i < a.count; i += threads_of_grid()) {
        T m = ((T *)a.slot)[i], s = ((T *)a.other)[i], v = From<T>{a.v, a.narrow, 0}[i];
        by.take(gradient(a, share, clip, i), m, s);
        ((T *)a.slot)[i] = m;
        ((T *)a.other)[i] = s;
        double r = (double)by.with_decay(v, m, s);
        of_v += (double)v * (double)v;
        of_r += r * r;
    }
    of_v = ByBlock::sum(of_v, meeting);
    of_r = ByBlock::sum(of_r, meeting);
    if (threadIdx.x == 0) {
        args.norms[2 * blockIdx.x] = of_v;
        args.norms[2 * blockIdx.x + 1] = of_r;
    }
}
OF_REALS(BLOCK_KERNEL_OF, lamb_moments, LambMoments)

// One block adds what the others found: √(Σv²/Σr²), or 1 where one is 0.
struct LambRatio {
    i64 blocks;
    const double *norms;
    double *ratio;
};

BLOCK_KERNEL(lamb_ratio, LambRatio) {
    SHARED(Meeting<double>, meeting);
    double of_v = 0, of_r = 0;
    UNROLL_BY(4) for (i64 i = threadIdx.x; i < a.blocks; i += THREADS) {
        of_v += a.norms[2 * i];
        of_r += a.norms[2 * i + 1];
    }
    of_v = ByBlock::sum(of_v, meeting);
    of_r = ByBlock::sum(of_r, meeting);
    if (threadIdx.x == 0) *a.ratio = of_v > 0 && of_r > 0 ? sqrt(of_v / of_r) : 1.0;
}

struct LambStep {
    i64 count;
    void *v;
    i64 narrow;
    const void *m;
    const void *s;
    const double *ratio;
    Rule rule;
};

template <class T> DEVICE void lamb_step(const LambStep &a) {
    Numbers<T> by(a.rule);
    T rate = by.rate * (T)*a.ratio;
    UNROLL_BY(1) for (i64 i = thread_in_grid(); i < a.count; i += threads_of_grid()) {
        T now = From<T>{a.v, a.narrow, 0}[i];
        T along = by.with_decay(now, ((const T *)a.m)[i], ((const T *)a.s)[i]);
        Into<T>{a.v, a.narrow, 0}.put(i, now - rate * along);
    }
}
OF_REALS(KERNEL_OF, lamb_step, LambStep)

// v ← v + rate·(share·Σ values − v).
struct ApplyAverage {
    i64 count;
    void *v;
    i64 narrow;
    i64 ranks;
    double rate;
    Parts values;
};

template <class T> DEVICE void apply_average(const ApplyAverage &a) {
    T share = T(1) / T((double)a.ranks), rate = (T)a.rate;
    UNROLL_BY(1) for (i64 i = thread_in_grid(); i < a.count; i += threads_of_grid()) {
        T now = From<T>{a.v, a.narrow, 0}[i];
        Into<T>{a.v, a.narrow, 0}.put(i, now + rate * (folded<T>(a.values, i) * share - now));
    }
}
OF_REALS(KERNEL_OF, apply_average, ApplyAverage)
