// Losses of rows of logits, and how many rows are right.
#include "device.cuh"

// One block counts the labels that are not ignored, and finds the first that is none of the classes.
struct CheckLabels {
    i64 rows;
    i64 classes;
    i64 ignored;
    const i32 *labels;
    // nothing where nobody asks
    i64 *counted;
    Fault *fault;
    u64 code;
};

BLOCK_KERNEL(check_labels, CheckLabels) {
    SHARED(Meeting<i64>, meeting);
    // the first wrong row is the largest of these
    i64 count = 0, wrong = -a.rows;
    UNROLL_BY(1) for (i64 row = threadIdx.x; row < a.rows; row += THREADS) {
        i64 label = a.labels[row];
        bool counts = label != a.ignored;
        count += counts ? 1 : 0;
        bool is_wrong = counts && (label < 0 || label >= a.classes);
        if (is_wrong && -row > wrong) wrong = -row;
    }
    count = ByBlock::sum(count, meeting);
    wrong = ByBlock::max(wrong, meeting);
    if (threadIdx.x != 0) return;
    if (a.counted) *a.counted = count;
    if (-wrong < a.rows) report(a.fault, a.code, -wrong, a.labels[-wrong]);
}

struct CrossEntropy {
    i64 rows;
    i64 classes;
    double smoothing;
    i64 ignored;
    i64 narrow;
    const void *logits;
    const i32 *labels;
    const i64 *counted;
    // of each row, not narrow
    void *losses;
    void *dlogits;
    i64 by_block;
};

template <class T, class Team> DEVICE void cross_entropy_by(const CrossEntropy &a, Meeting<T> &meeting) {
    T smoothing = (T)a.smoothing, everywhere = smoothing / T((double)a.classes), counted = T((double)*a.counted);
    UNROLL_BY(1) for (i64 row = Team::first(); row < a.rows; row += Team::step()) {
        From<T> x = {a.logits, a.narrow, row * a.classes};
        Into<T> dx = {a.dlogits, a.narrow, row * a.classes};
        i64 label = a.labels[row];
        // a label that is none was reported; nothing is read for it
        if (label == a.ignored || label < 0 || label >= a.classes) {
            UNROLL_BY(1) for (i64 i = Team::place(); i < a.classes; i += Team::SIZE) dx.put(i, T(0));
            if (Team::place() == 0) ((T *)a.losses)[row] = T(0);
            continue;
        }
        T most = -infinity<T>(), sum = T(0), level = T(0);
        UNROLL_BY(2) for (i64 i = Team::place(); i < a.classes; i += Team::SIZE) {
            T one = x[i];
            most = one > most ? one : most;
        }
        most = Team::max(most, meeting);
        UNROLL_BY(1) for (i64 i = Team::place(); i < a.classes; i += Team::SIZE) {
            T one = x[i] - most;
            sum += exp_of(one);
            level += one;
        }
        sum = Team::sum(sum, meeting);
        UNROLL_BY(1) for (i64 i = Team::place(); i < a.classes; i += Team::SIZE) {
            T here = i == label ? T(1) - smoothing : T(0);
            dx.put(i, (exp_of(x[i] - most) / sum - (here + everywhere)) / counted);
        }
        T loss = (T(1) - smoothing) * (log_of(sum) - (x[label] - most));
        if (smoothing > T(0)) {
            level = Team::sum(level, meeting);
            loss += everywhere * (T((double)a.classes) * log_of(sum) - level);
        }
        if (Team::place() == 0) ((T *)a.losses)[row] = loss;
    }
}

template <class T> DEVICE void cross_entropy(const CrossEntropy &a) {
    SHARED(Meeting<T>, meeting);
    if (a.by_block) {
        cross_entropy_by<T, ByBlock>(a, meeting);
    } else {
        cross_entropy_by<T, ByWarp>(a, meeting);
    }
}
OF_REALS(BLOCK_KERNEL_OF, cross_entropy, CrossEntropy)

// The mean over the rows that count, by one block.
struct SumLosses {
    i64 rows;
    const void *losses;
    const i64 *counted;
    void *y;
    i64 narrow;
};

template <class T> DEVICE void sum_losses(const SumLosses &a) {
    SHARED(Meeting<T>, meeting);
    T sum = T(0);
    UNROLL_BY(4) for (i64 row = threadIdx.x; row < a.rows; row += THREADS) sum += ((const T *)a.losses)[row];
    sum = ByBlock::sum(sum, meeting);
    if (threadIdx.x == 0) Into<T>{a.y, a.narrow, 0}.put(0, *a.counted > 0 ? sum / T((double)*a.counted) : T(0));
}
OF_REALS(BLOCK_KERNEL_OF, sum_losses, SumLosses)

// Adds to what is there how many rows have their label among their `within` largest logits, of equals the first.
struct CountWithin {
    i64 rows;
    i64 classes;
    i64 within;
    i64 narrow;
    const void *logits;
    const i32 *labels;
    u64 *correct;
};

template <class T> DEVICE void count_within(const CountWithin &a) {
    SHARED(Meeting<i64>, meeting);
    UNROLL_BY(1) for (i64 row = ByWarp::first(); row < a.rows; row += ByWarp::step()) {
        From<T> x = {a.logits, a.narrow, row * a.classes};
        i64 label = a.labels[row];
        if (label < 0 || label >= a.classes) continue;
        T own = x[label];
        // a row that holds a NaN has no order
        i64 ahead = 0, unordered = 0;
        UNROLL_BY(2) for (i64 i = lane(); i < a.classes; i += WARP) {
            T one = x[i];
            ahead += one > own || (one == own && i < label) ? 1 : 0;
            unordered += is_nan(one) ? 1 : 0;
        }
        ahead = ByWarp::sum(ahead, meeting);
        unordered = ByWarp::sum(unordered, meeting);
        if (lane() == 0 && ahead < a.within && unordered == 0) atomicAdd(a.correct, 1ull);
    }
}
OF_REALS(BLOCK_KERNEL_OF, count_within, CountWithin)
