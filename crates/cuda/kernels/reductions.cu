// Few elements of many. Sums are trees that depend on the sizes alone: threads add what lies so many places apart, then
// threads of a warp, then warps of a block, then the parts that a row was cut into.
#include "device.cuh"

enum By { SUM = 0, MEAN, MOST };

// x is [outer, length, inner]; its length is cut into parts, the sums of which are [outer, inner, parts].
struct Reduce {
    i64 by;
    i64 outer;
    i64 length;
    i64 inner;
    i64 parts;
    i64 part_length;
    const void *x;
    i64 x_narrow;
    void *y;
    i64 y_narrow;
    // the last of several steps, which divides a mean
    i64 ends;
    // of a mean
    i64 divisor;
    // rows are done by blocks, else by warps
    i64 by_block;
};

template <class T> DEVICE T nothing(i64 by) { return by == MOST ? -infinity<T>() : T(0); }

template <class T> DEVICE T joined(i64 by, T a, T b) { return by == MOST ? larger(a, b) : a + b; }

template <class T> DEVICE void finish(const Reduce &a, i64 at, T sum) {
    bool divides = a.by == MEAN && a.ends;
    Into<T>{a.y, a.y_narrow, 0}.put(at, divides ? sum / T((double)a.divisor) : sum);
}

// A thread for each result, which adds in order.
template <class T> DEVICE void reduce_columns(const Reduce &a) {
    From<T> x = {a.x, a.x_narrow, 0};
    i64 count = a.outer * a.parts * a.inner;
    UNROLL_BY(1) for (i64 i = thread_in_grid(); i < count; i += threads_of_grid()) {
        i64 inner = i % a.inner, part = i / a.inner % a.parts, outer = i / a.inner / a.parts;
        i64 first = part * a.part_length, end = least(first + a.part_length, a.length);
        i64 at = (outer * a.length + first) * a.inner + inner;
        T sum = nothing<T>(a.by);
        UNROLL_BY(4) for (i64 l = first; l < end; l++) {
            sum = joined(a.by, sum, x[at]);
            at += a.inner;
        }
        finish(a, (outer * a.inner + inner) * a.parts + part, sum);
    }
}
OF_REALS(KERNEL_OF, reduce_columns, Reduce)

template <class T> DEVICE T warp_joined(i64 by, T x) {
    UNROLL for (i32 apart = WARP / 2; apart > 0; apart /= 2)
        x = joined(by, x, __shfl_xor_sync(0xffffffffu, x, apart));
    return x;
}

// Where inner is 1: a warp or a block for each result.
template <class T, class Team> DEVICE void reduce_rows_by(const Reduce &a, Meeting<T> &meeting) {
    From<T> x = {a.x, a.x_narrow, 0};
    i64 rows = a.outer * a.parts;
    UNROLL_BY(1) for (i64 row = Team::first(); row < rows; row += Team::step()) {
        i64 part = row % a.parts, outer = row / a.parts;
        i64 first = part * a.part_length, end = least(first + a.part_length, a.length);
        T sum = nothing<T>(a.by);
        UNROLL_BY(4) for (i64 l = first + Team::place(); l < end; l += Team::SIZE)
            sum = joined(a.by, sum, x[outer * a.length + l]);
        sum = warp_joined(a.by, sum);
        if (Team::SIZE > WARP) {
            __syncthreads();
            if (lane() == 0) meeting.of_warp[warp()] = sum;
            __syncthreads();
            sum = meeting.of_warp[0];
            UNROLL for (i32 i = 1; i < THREADS / WARP; i++) sum = joined(a.by, sum, meeting.of_warp[i]);
        }
        if (Team::place() == 0) finish(a, row, sum);
    }
}

template <class T> DEVICE void reduce_rows(const Reduce &a) {
    SHARED(Meeting<T>, meeting);
    if (a.by_block) {
        reduce_rows_by<T, ByBlock>(a, meeting);
    } else {
        reduce_rows_by<T, ByWarp>(a, meeting);
    }
}
OF_REALS(BLOCK_KERNEL_OF, reduce_rows, Reduce)

// dx of x, which is [outer, length, inner]; y and dy are [outer, inner].
struct ReduceGrad {
    i64 by;
    i64 outer;
    i64 length;
    i64 inner;
    i64 narrow;
    const void *dy;
    const void *x;
    const void *y;
    void *dx;
};

template <class T> DEVICE void reduce_grad(const ReduceGrad &a) {
    From<T> x = {a.x, a.narrow, 0}, y = {a.y, a.narrow, 0}, dy = {a.dy, a.narrow, 0};
    Into<T> dx = {a.dx, a.narrow, 0};
    if (a.by != MOST) {
        i64 count = a.outer * a.length * a.inner;
        UNROLL_BY(1) for (i64 i = thread_in_grid(); i < count; i += threads_of_grid()) {
            i64 at = i / a.inner / a.length * a.inner + i % a.inner;
            T d = dy[at];
            dx.put(i, a.by == MEAN ? d / T((double)a.length) : d);
        }
        return;
    }
    // the first of equals has it
    UNROLL_BY(1) for (i64 i = thread_in_grid(); i < a.outer * a.inner; i += threads_of_grid()) {
        i64 at = i / a.inner * a.length * a.inner + i % a.inner;
        T most = y[i];
        bool found = false;
        UNROLL_BY(1) for (i64 l = 0; l < a.length; l++) {
            T one = x[at];
            bool is_most = !found && (one == most || is_nan(one));
            found = found || is_most;
            dx.put(at, is_most ? dy[i] : T(0));
            at += a.inner;
        }
    }
}
OF_REALS(KERNEL_OF, reduce_grad, ReduceGrad)

struct Softmax {
    i64 rows;
    i64 columns;
    i64 narrow;
    // of the gradient; else nothing
    const void *dy;
    const void *x;
    void *y;
    i64 by_block;
};

template <class T, class Team> DEVICE void softmax_by(const Softmax &a, Meeting<T> &meeting) {
    UNROLL_BY(1) for (i64 row = Team::first(); row < a.rows; row += Team::step()) {
        From<T> x = {a.x, a.narrow, row * a.columns};
        Into<T> y = {a.y, a.narrow, row * a.columns};
        T most = -infinity<T>(), sum = T(0);
        for (i64 i = Team::place(); i < a.columns; i += Team::SIZE) {
            T one = x[i];
            most = one > most ? one : most;
        }
        most = Team::max(most, meeting);
        UNROLL_BY(1) for (i64 i = Team::place(); i < a.columns; i += Team::SIZE) sum += exp_of(x[i] - most);
        sum = Team::sum(sum, meeting);
        UNROLL_BY(1) for (i64 i = Team::place(); i < a.columns; i += Team::SIZE)
            y.put(i, exp_of(x[i] - most) / sum);
    }
}

template <class T> DEVICE void softmax(const Softmax &a) {
    SHARED(Meeting<T>, meeting);
    if (a.by_block) {
        softmax_by<T, ByBlock>(a, meeting);
    } else {
        softmax_by<T, ByWarp>(a, meeting);
    }
}
OF_REALS(BLOCK_KERNEL_OF, softmax, Softmax)

// y ← x∘(dy − Σ dy∘x), x being what the operator made.
template <class T, class Team> DEVICE void softmax_grad_by(const Softmax &a, Meeting<T> &meeting) {
    UNROLL_BY(1) for (i64 row = Team::first(); row < a.rows; row += Team::step()) {
        From<T> x = {a.x, a.narrow, row * a.columns}, dy = {a.dy, a.narrow, row * a.columns};
        Into<T> y = {a.y, a.narrow, row * a.columns};
        T sum = T(0);
        UNROLL_BY(2) for (i64 i = Team::place(); i < a.columns; i += Team::SIZE) sum += dy[i] * x[i];
        sum = Team::sum(sum, meeting);
        UNROLL_BY(2) for (i64 i = Team::place(); i < a.columns; i += Team::SIZE)
            y.put(i, x[i] * (dy[i] - sum));
    }
}

template <class T> DEVICE void softmax_grad(const Softmax &a) {
    SHARED(Meeting<T>, meeting);
    if (a.by_block) {
        softmax_grad_by<T, ByBlock>(a, meeting);
    } else {
        softmax_grad_by<T, ByWarp>(a, meeting);
    }
}
OF_REALS(BLOCK_KERNEL_OF, softmax_grad, Softmax)

// The sum of the squares of each row of share·Σ gradients.
struct SquareSums {
    i64 rows;
    i64 columns;
    i64 ranks;
    double *y;
    // 0: by threads; 1: by warps; 2: by blocks
    i64 team;
    Parts gradients;
};

template <class T> DEVICE double square(const SquareSums &a, i64 i) {
    double g = (double)(folded<T>(a.gradients, i) * (T(1) / T((double)a.ranks)));
    return g * g;
}

template <class T, class Team> DEVICE void square_sums_by(const SquareSums &a, Meeting<double> &meeting) {
    UNROLL_BY(1) for (i64 row = Team::first(); row < a.rows; row += Team::step()) {
        double sum = 0;
        UNROLL_BY(1) for (i64 i = Team::place(); i < a.columns; i += Team::SIZE)
            sum += square<T>(a, row * a.columns + i);
        sum = Team::sum(sum, meeting);
        if (Team::place() == 0) a.y[row] = sum;
    }
}

template <class T> DEVICE void square_sums(const SquareSums &a) {
    SHARED(Meeting<double>, meeting);
    if (a.team == 2) {
        square_sums_by<T, ByBlock>(a, meeting);
    } else if (a.team == 1) {
        square_sums_by<T, ByWarp>(a, meeting);
    } else {
        UNROLL_BY(1) for (i64 row = thread_in_grid(); row < a.rows; row += threads_of_grid()) {
            double sum = 0;
            UNROLL_BY(1) for (i64 i = 0; i < a.columns; i++) sum += square<T>(a, row * a.columns + i);
            a.y[row] = sum;
        }
    }
}
OF_REALS(BLOCK_KERNEL_OF, square_sums, SquareSums)

// By how much gradients of these sums of squares are clipped: a block adds tensor after tensor.
struct ClipScale {
    i64 count;
    // of the tensors before these, or nothing
    const double *before;
    // where there are more to come; else nothing
    double *after;
    double *y;
    double norm;
    const double *sums[64];
    i64 size[64];
};

BLOCK_KERNEL(clip_scale, ClipScale) {
    SHARED(Meeting<double>, meeting);
    double total = a.before ? *a.before : 0;
    UNROLL_BY(1) for (i64 tensor = 0; tensor < a.count; tensor++) {
        double sum = 0;
        UNROLL_BY(4) for (i64 i = threadIdx.x; i < a.size[tensor]; i += THREADS) sum += a.sums[tensor][i];
        total += ByBlock::sum(sum, meeting);
    }
    if (threadIdx.x != 0) return;
    if (a.after) {
        *a.after = total;
    } else {
        // so far is a norm from 0 that it can be divided by
        double scale = a.norm / (sqrt(total) + 1e-6);
        *a.y = scale < 1 ? scale : 1;
    }
}
