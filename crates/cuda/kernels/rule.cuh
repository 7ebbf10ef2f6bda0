// How an optimizer changes one element, with the numbers of one step in what the variable is computed in.
#pragma once
#include "device.cuh"

// crates/cuda/src/lower/updates.rs has the same list.
enum Method { SGD = 0, MOMENTUM, NESTEROV, ADAGRAD, RMSPROP, ADAM, ADAMW, LAMB };

struct Rule {
    i64 method;
    double rate;
    // by what it is multiplied in this step
    const double *rate_factor;
    double decay;
    // the momentum, alpha, or the first beta
    double first;
    // the second beta
    double second;
    double epsilon;
    // 1 − βᵗ of both, in memory, where steps are counted
    const double *bias;
};

template <class T> struct Numbers {
    i64 method;
    T rate, pull, keep, decay, first, fresh_first, second, fresh_second, epsilon, bias1, bias2;

    DEVICE_IN explicit Numbers(const Rule &rule) {
        double now = rule.rate * *rule.rate_factor;
        bool drawn = rule.method != ADAMW && rule.method != LAMB;
        method = rule.method;
        rate = (T)now;
        pull = (T)(drawn ? rule.decay : 0.0);
        keep = (T)(rule.method == ADAMW ? 1.0 - now * rule.decay : 1.0);
        decay = (T)rule.decay;
        first = (T)rule.first;
        fresh_first = (T)(1.0 - rule.first);
        second = (T)rule.second;
        fresh_second = (T)(1.0 - rule.second);
        epsilon = (T)rule.epsilon;
        bias1 = rule.bias ? (T)rule.bias[0] : T(1);
        bias2 = rule.bias ? (T)rule.bias[1] : T(1);
    }

    // Takes a gradient into the moments.
    DEVICE_IN void take(T g, T &m, T &s) const {
        m = first * m + fresh_first * g;
        s = second * s + fresh_second * (g * g);
    }

    // m̂/(√ŝ + epsilon), of which m̂ is multiplied by `by`.
    DEVICE_IN T direction(T by, T m, T s) const { return by * (m / bias1) / (sqrt_of(s / bias2) + epsilon); }

    // What LAMB moves along.
    DEVICE_IN T with_decay(T v, T m, T s) const { return direction(T(1), m, s) + decay * v; }
};

// Moves v, whose slots lie at place i, along the gradient g, which is clipped.
template <class T> DEVICE T moved(const Numbers<T> &by, T v, T g, T *slot, T *other, i64 i) {
    v *= by.keep;
    if (by.pull != T(0)) g = g + by.pull * v;
    switch (by.method) {
    case SGD:
        return v - by.rate * g;
    case MOMENTUM: {
        T u = by.first * slot[i] + g;
        slot[i] = u;
        return v - by.rate * u;
    }
    case NESTEROV: {
        T u = by.first * slot[i] + g;
        slot[i] = u;
        return v - by.rate * (g + by.first * u);
    }
    case ADAGRAD: {
        T a = slot[i] + g * g;
        slot[i] = a;
        return v - by.rate * g / (sqrt_of(a) + by.epsilon);
    }
    case RMSPROP: {
        T a = by.first * slot[i] + by.fresh_first * (g * g);
        slot[i] = a;
        return v - by.rate * g / (sqrt_of(a) + by.epsilon);
    }
    default: {
        T m = slot[i], s = other[i];
        by.take(g, m, s);
        slot[i] = m;
        other[i] = s;
        return v - by.direction(by.rate, m, s);
    }
    }
}
