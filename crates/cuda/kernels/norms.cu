// Normalisation over a batch, channel by channel, and of each sample by itself. Sums over rows are made by parts of the
// rows, a thread for each channel, and then over the parts.
#include "device.cuh"

// How many numbers, their mean, and the sum of their squared distances from it (Chan, Golub and LeVeque 1983).
template <class T> struct Moments {
    T count, mean, squares;

    DEVICE_IN void add(const Moments &other) {
        T all = count + other.count;
        if (!(other.count > T(0))) return;
        T apart = other.mean - mean, part = other.count / all;
        squares += other.squares + apart * apart * count * part;
        mean += apart * part;
        count = all;
    }
};

// Of each channel the moments of parts of the rows: [columns, parts].
struct ColumnMoments {
    i64 rows;
    i64 columns;
    i64 parts;
    i64 part_rows;
    const void *x;
    i64 narrow;
    void *mean;
    void *squares;
};

template <class T> DEVICE void column_moments(const ColumnMoments &a) {
    const i32 MANY = 8;
    UNROLL_BY(1) for (i64 i = thread_in_grid(); i < a.parts * a.columns; i += threads_of_grid()) {
        i64 column = i % a.columns, part = i / a.columns, end = least((part + 1) * a.part_rows, a.rows);
        Moments<T> all = {T(0), T(0), T(0)};
        UNROLL_BY(1) for (i64 row = part * a.part_rows; row < end; row += MANY) {
            T x[MANY], sum = T(0), squares = T(0);
            T count = T((double)least(MANY, end - row));
            UNROLL for (i32 k = 0; k < MANY; k++) {
                x[k] = row + k < end ? From<T>{a.x, a.narrow, 0}[(row + k) * a.columns + column] : T(0);
                sum += x[k];
            }
            T mean = sum / count;
            UNROLL for (i32 k = 0; k < MANY; k++)
                if (row + k < end) squares += (x[k] - mean) * (x[k] - mean);
            all.add(Moments<T>{count, mean, squares});
        }
        ((T *)a.mean)[column * a.parts + part] = all.mean;
        ((T *)a.squares)[column * a.parts + part] = all.squares;
    }
}
OF_REALS(KERNEL_OF, column_moments, ColumnMoments)

// A warp for each channel joins the parts: the mean and the biased variance, as they are computed and as they are stored.
struct JoinMoments {
    ColumnMoments from;
    void *mean;
    void *variance;
    void *mean_stored;
    void *variance_stored;
};

template <class T> DEVICE void join_moments(const JoinMoments &args) {
    const ColumnMoments &a = args.from;
    UNROLL_BY(1) for (i64 column = ByWarp::first(); column < a.columns; column += ByWarp::step()) {
        Moments<T> all = {T(0), T(0), T(0)};
        UNROLL_BY(1) for (i64 part = lane(); part < a.parts; part += WARP) {
            T count = T((double)(least((part + 1) * a.part_rows, a.rows) - part * a.part_rows));
            i64 at = column * a.parts + part;
            all.add(Moments<T>{count, ((const T *)a.mean)[at], ((const T *)a.squares)[at]});
        }
        UNROLL for (i32 apart = WARP / 2; apart > 0; apart /= 2) {
            Moments<T> other;
            other.count = __shfl_xor_sync(0xffffffffu, all.count, apart);
            other.mean = __shfl_xor_sync(0xffffffffu, all.mean, apart);
            other.squares = __shfl_xor_sync(0xffffffffu, all.squares, apart);
            all.add(other);
        }
        if (lane() != 0) continue;
        T variance = all.squares / T((double)a.rows);
        ((T *)args.mean)[column] = all.mean;
        ((T *)args.variance)[column] = variance;
        Into<T>{args.mean_stored, a.narrow, 0}.put(column, all.mean);
        Into<T>{args.variance_stored, a.narrow, 0}.put(column, variance);
    }
}
OF_REALS(BLOCK_KERNEL_OF, join_moments, JoinMoments)

// y = (x − mean)/√(variance + epsilon)·scale + shift.
struct Normalize {
    i64 count;
    i64 columns;
    i64 narrow;
    const void *x;
    // or nothing
    const void *scale;
    const void *shift;
    const void *mean;
    const void *variance;
    // the statistics are
    i64 statistics_narrow;
    double epsilon;
    void *y;
};

template <class T> DEVICE void normalize(const Normalize &a) {
    From<T> mean = {a.mean, a.statistics_narrow, 0}, variance = {a.variance, a.statistics_narrow, 0};
    From<T> x = {a.x, a.narrow, 0}, scale = {a.scale, a.narrow, 0}, shift = {a.shift, a.narrow, 0};
    UNROLL_BY(1) for (i64 i = thread_in_grid(); i < a.count; i += threads_of_grid()) {
        i64 column = i % a.columns;
        T normal = (x[i] - mean[column]) / sqrt_of(variance[column] + (T)a.epsilon);
        T scaled = normal * (a.scale ? scale[column] : T(1));
        Into<T>{a.y, a.narrow, 0}.put(i, scaled + shift[column]);
    }
}
OF_REALS(KERNEL_OF, normalize, Normalize)

// Σ dy and Σ dy·x̂ of each channel, by parts of the rows: [columns, parts] each. x̂ is normalised by its channel's mean and
// variance, or by the mean and 1/√variance of its sample, which are not narrow and [samples, groups].
struct ColumnGradients {
    i64 rows;
    i64 columns;
    i64 narrow;
    i64 parts;
    i64 part_rows;
    const void *dy;
    const void *x;
    // or nothing, which is 0
    const void *mean;
    const void *spread;
    double epsilon;
    // rows of a sample; 0 where channels are normalised
    i64 positions;
    i64 groups;
    // channels of a group
    i64 size;
    void *of_shift;
    void *of_scale;
};

template <class T> DEVICE void column_gradients(const ColumnGradients &a) {
    bool by_sample = a.positions > 0;
    From<T> all_x = {a.x, a.narrow, 0}, all_dy = {a.dy, a.narrow, 0};
    UNROLL_BY(1) for (i64 i = thread_in_grid(); i < a.parts * a.columns; i += threads_of_grid()) {
        i64 column = i % a.columns, part = i / a.columns, end = least((part + 1) * a.part_rows, a.rows);
        T mean = T(0), spread = T(1), of_shift = T(0), of_scale = T(0);
        if (!by_sample) {
            mean = From<T>{a.mean, a.narrow, 0}[column];
            spread = sqrt_of(From<T>{a.spread, a.narrow, 0}[column] + (T)a.epsilon);
        }
        UNROLL_BY(2) for (i64 row = part * a.part_rows; row < end; row++) {
            T dy = all_dy[row * a.columns + column], x = all_x[row * a.columns + column], normal;
            if (by_sample) {
                i64 at = row / a.positions * a.groups + column / a.size;
                mean = a.mean ? ((const T *)a.mean)[at] : T(0);
                normal = (x - mean) * ((const T *)a.spread)[at];
            } else {
                normal = (x - mean) / spread;
            }
            of_shift += dy;
            of_scale += dy * normal;
        }
        ((T *)a.of_shift)[column * a.parts + part] = of_shift;
        ((T *)a.of_scale)[column * a.parts + part] = of_scale;
    }
}
OF_REALS(KERNEL_OF, column_gradients, ColumnGradients)

// A warp for each channel adds the parts: as they are computed, if somebody asks, and as they are stored, if somebody does.
struct JoinGradients {
    i64 columns;
    i64 parts;
    // of what is stored
    i64 narrow;
    const void *of_shift;
    const void *of_scale;
    void *shift_sum;
    void *scale_sum;
    void *dshift;
    void *dscale;
};

template <class T> DEVICE void join_gradients(const JoinGradients &a) {
    UNROLL_BY(1) for (i64 column = ByWarp::first(); column < a.columns; column += ByWarp::step()) {
        T of_shift = T(0), of_scale = T(0);
        UNROLL_BY(1) for (i64 part = lane(); part < a.parts; part += WARP) {
            of_shift += ((const T *)a.of_shift)[column * a.parts + part];
            of_scale += ((const T *)a.of_scale)[column * a.parts + part];
        }
        of_shift = warp_sum(of_shift);
        of_scale = warp_sum(of_scale);
        if (lane() != 0) continue;
        if (a.shift_sum) ((T *)a.shift_sum)[column] = of_shift;
        if (a.scale_sum) ((T *)a.scale_sum)[column] = of_scale;
        if (a.dshift) Into<T>{a.dshift, a.narrow, 0}.put(column, of_shift);
        if (a.dscale) Into<T>{a.dscale, a.narrow, 0}.put(column, of_scale);
    }
}
OF_REALS(BLOCK_KERNEL_OF, join_gradients, JoinGradients)

// dx = scale/√(variance + epsilon)·(dy − dshift/n − x̂·dscale/n).
struct BatchNormGrad {
    i64 rows;
    i64 columns;
    i64 narrow;
    const void *dy;
    const void *x;
    const void *mean;
    const void *variance;
    const void *scale;
    double epsilon;
    const void *of_shift;
    const void *of_scale;
    void *dx;
};

template <class T> DEVICE void batch_norm_grad(const BatchNormGrad &a) {
    T count = T((double)a.rows);
    From<T> x = {a.x, a.narrow, 0}, dy = {a.dy, a.narrow, 0}, scale = {a.scale, a.narrow, 0};
    From<T> mean = {a.mean, a.narrow, 0}, variance = {a.variance, a.narrow, 0};
    UNROLL_BY(1) for (i64 i = thread_in_grid(); i < a.rows * a.columns; i += threads_of_grid()) {
        i64 column = i % a.columns;
        T spread = sqrt_of(variance[column] + (T)a.epsilon);
        T normal = (x[i] - mean[column]) / spread;
        T factor = (a.scale ? scale[column] : T(1)) / spread;
        T rest = ((const T *)a.of_shift)[column] / count + normal * ((const T *)a.of_scale)[column] / count;
        Into<T>{a.dx, a.narrow, 0}.put(i, factor * (dy[i] - rest));
    }
}
OF_REALS(KERNEL_OF, batch_norm_grad, BatchNormGrad)

// x as [samples, positions, groups, size]; statistics are [samples, groups], each over the positions and the size.
struct SampleNorm {
    i64 samples;
    i64 positions;
    i64 groups;
    i64 size;
    double epsilon;
    // of all but the statistics
    i64 narrow;
    const void *x;
    const void *scale;
    // there where a mean is
    const void *shift;
    // of the gradient
    const void *dy;
    void *y;
    // or nothing, which is 0
    void *mean;
    void *rstd;
    i64 by_block;
};

// Element j of a statistic, and its channel.
DEVICE i64 place_of(const SampleNorm &a, i64 sample, i64 group, i64 j, i64 &channel) {
    i64 position = 0;
    channel = group * a.size + j;
    if (a.positions > 1) {
        position = j / a.size;
        channel = group * a.size + j % a.size;
    }
    return (sample * a.positions + position) * a.groups * a.size + channel;
}

template <class T, class Team> DEVICE void sample_norm_by(const SampleNorm &a, Meeting<T> &meeting) {
    i64 many = a.positions * a.size, channel;
    T count = T((double)many);
    From<T> x = {a.x, a.narrow, 0}, scale = {a.scale, a.narrow, 0}, shift = {a.shift, a.narrow, 0};
    UNROLL_BY(1) for (i64 at = Team::first(); at < a.samples * a.groups; at += Team::step()) {
        i64 sample = at / a.groups, group = at % a.groups;
        T middle = T(0), squares = T(0);
        if (a.mean) {
            UNROLL_BY(1) for (i64 j = Team::place(); j < many; j += Team::SIZE)
                middle += x[place_of(a, sample, group, j, channel)];
            middle = Team::sum(middle, meeting) / count;
        }
        UNROLL_BY(1) for (i64 j = Team::place(); j < many; j += Team::SIZE) {
            T apart = x[place_of(a, sample, group, j, channel)] - middle;
            squares += apart * apart;
        }
        T rstd = T(1) / sqrt_of(Team::sum(squares, meeting) / count + (T)a.epsilon);
        UNROLL_BY(1) for (i64 j = Team::place(); j < many; j += Team::SIZE) {
            i64 place = place_of(a, sample, group, j, channel);
            T y = (x[place] - middle) * rstd * scale[channel];
            Into<T>{a.y, a.narrow, 0}.put(place, a.shift ? y + shift[channel] : y);
        }
        if (Team::place() != 0) continue;
        if (a.mean) ((T *)a.mean)[at] = middle;
        ((T *)a.rstd)[at] = rstd;
    }
}

template <class T> DEVICE void sample_norm(const SampleNorm &a) {
    SHARED(Meeting<T>, meeting);
    if (a.by_block) {
        sample_norm_by<T, ByBlock>(a, meeting);
    } else {
        sample_norm_by<T, ByWarp>(a, meeting);
    }
}
OF_REALS(BLOCK_KERNEL_OF, sample_norm, SampleNorm)

// With g = dy·scale: dx = rstd·(g − mean(g) − x̂·mean(g·x̂)), the first mean taken for 0 where x's is.
template <class T, class Team> DEVICE void sample_norm_grad_by(const SampleNorm &a, Meeting<T> &meeting) {
    i64 many = a.positions * a.size, channel;
    T count = T((double)many);
    From<T> x = {a.x, a.narrow, 0}, dy = {a.dy, a.narrow, 0}, scale = {a.scale, a.narrow, 0};
    UNROLL_BY(1) for (i64 at = Team::first(); at < a.samples * a.groups; at += Team::step()) {
        i64 sample = at / a.groups, group = at % a.groups;
        T middle = a.mean ? ((const T *)a.mean)[at] : T(0), rstd = ((const T *)a.rstd)[at];
        T level = T(0), along = T(0);
        UNROLL_BY(1) for (i64 j = Team::place(); j < many; j += Team::SIZE) {
            i64 place = place_of(a, sample, group, j, channel);
            T g = dy[place] * scale[channel];
            level += g;
            along += g * ((x[place] - middle) * rstd);
        }
        level = a.mean ? Team::sum(level, meeting) / count : T(0);
        along = Team::sum(along, meeting) / count;
        UNROLL_BY(1) for (i64 j = Team::place(); j < many; j += Team::SIZE) {
            i64 place = place_of(a, sample, group, j, channel);
            T g = dy[place] * scale[channel];
            Into<T>{a.y, a.narrow, 0}.put(place, rstd * (g - level - (x[place] - middle) * rstd * along));
        }
    }
}

template <class T> DEVICE void sample_norm_grad(const SampleNorm &a) {
    SHARED(Meeting<T>, meeting);
    if (a.by_block) {
        sample_norm_grad_by<T, ByBlock>(a, meeting);
    } else {
        sample_norm_grad_by<T, ByWarp>(a, meeting);
    }
}
OF_REALS(BLOCK_KERNEL_OF, sample_norm_grad, SampleNorm)
