// Pooling of images [n,h,w,c], and the normalisation of responses by those of neighbouring channels.
#include "device.cuh"

// x is [batch, height, width, channels], y [batch, window_rows, window_columns, channels].
struct Pooling {
    i64 batch;
    i64 height;
    i64 width;
    i64 channels;
    i64 window_rows;
    i64 window_columns;
    i64 kernel_rows;
    i64 kernel_columns;
    i64 stride_rows;
    i64 stride_columns;
    i64 dilation_rows;
    i64 dilation_columns;
    i64 before_rows;
    i64 before_columns;
};

struct Pool {
    Pooling sizes;
    // of the gradient: dy
    const void *x;
    void *y;
    u8 *places;
    // of the gradient
    const u8 *given_places;
    i64 narrow;
};

// An element by its image, row, column and channel.
struct At {
    i64 image, row, column, channel;
};

DEVICE At at_of(i64 i, i64 rows, i64 columns, i64 channels) {
    At at;
    at.channel = i % channels;
    i /= channels;
    at.column = i % columns;
    i /= columns;
    at.row = i % rows;
    at.image = i / rows;
    return at;
}

// How many places of a kernel's side lie in an image.
DEVICE i64 count_inside(i64 window, i64 stride, i64 before, i64 dilation, i64 kernel, i64 size) {
    i64 count = 0;
    UNROLL_BY(1) for (i64 tap = 0; tap < kernel; tap++) {
        i64 place = window * stride - before + tap * dilation;
        count += place >= 0 && place < size ? 1 : 0;
    }
    return count;
}

DEVICE i64 elements_in_window(const Pooling &p, i64 row, i64 column) {
    return count_inside(row, p.stride_rows, p.before_rows, p.dilation_rows, p.kernel_rows, p.height) *
           count_inside(column, p.stride_columns, p.before_columns, p.dilation_columns, p.kernel_columns, p.width);
}

// A NaN is larger than any number; of equals the first. The largest of nothing is −∞.
template <class T> DEVICE void max_pool(const Pool &a) {
    const Pooling &p = a.sizes;
    i64 count = p.batch * p.window_rows * p.window_columns * p.channels;
    UNROLL_BY(1) for (i64 i = thread_in_grid(); i < count; i += threads_of_grid()) {
        At at = at_of(i, p.window_rows, p.window_columns, p.channels);
        T most = -infinity<T>();
        i64 where = 0;
        bool seen = false;
        UNROLL_BY(1) for (i64 tap_row = 0; tap_row < p.kernel_rows; tap_row++) {
            i64 row = at.row * p.stride_rows - p.before_rows + tap_row * p.dilation_rows;
            if (row < 0 || row >= p.height) continue;
            UNROLL_BY(1) for (i64 tap_column = 0; tap_column < p.kernel_columns; tap_column++) {
                i64 column = at.column * p.stride_columns - p.before_columns + tap_column * p.dilation_columns;
                if (column < 0 || column >= p.width) continue;
                i64 from = ((at.image * p.height + row) * p.width + column) * p.channels + at.channel;
                T x = From<T>{a.x, a.narrow, 0}[from];
                if (seen && !(x > most) && !(is_nan(x) && !is_nan(most))) continue;
                most = x;
                where = tap_row * p.kernel_columns + tap_column;
                seen = true;
            }
        }
        Into<T>{a.y, a.narrow, 0}.put(i, most);
        a.places[i] = (u8)where;
    }
}
OF_REALS(KERNEL_OF, max_pool, Pool)

template <class T> DEVICE void avg_pool(const Pool &a) {
    const Pooling &p = a.sizes;
    i64 count = p.batch * p.window_rows * p.window_columns * p.channels;
    UNROLL_BY(1) for (i64 i = thread_in_grid(); i < count; i += threads_of_grid()) {
        At at = at_of(i, p.window_rows, p.window_columns, p.channels);
        T sum = T(0);
        i64 seen = 0;
        UNROLL_BY(1) for (i64 tap_row = 0; tap_row < p.kernel_rows; tap_row++) {
            i64 row = at.row * p.stride_rows - p.before_rows + tap_row * p.dilation_rows;
            if (row < 0 || row >= p.height) continue;
            UNROLL_BY(1) for (i64 tap_column = 0; tap_column < p.kernel_columns; tap_column++) {
                i64 column = at.column * p.stride_columns - p.before_columns + tap_column * p.dilation_columns;
                if (column < 0 || column >= p.width) continue;
                i64 from = ((at.image * p.height + row) * p.width + column) * p.channels + at.channel;
                sum += From<T>{a.x, a.narrow, 0}[from];
                seen++;
            }
        }
        Into<T>{a.y, a.narrow, 0}.put(i, sum / T((double)(seen > 0 ? seen : 1)));
    }
}
OF_REALS(KERNEL_OF, avg_pool, Pool)

// The windows that may see a row or a column: first..end, of which those see it from whose first place it is a whole number
// of dilations away.
struct Seers {
    i64 first, end, stride, dilation, from;
    DEVICE_IN bool tap(i64 window, i64 &tap) const {
        i64 apart = from - window * stride;
        tap = apart / dilation;
        return apart == tap * dilation;
    }
};

DEVICE Seers seers(i64 place, i64 windows, i64 stride, i64 before, i64 dilation, i64 kernel) {
    i64 from = place + before, reach = from - (kernel - 1) * dilation;
    i64 first = reach <= 0 ? 0 : (reach + stride - 1) / stride;
    return Seers{first, least(from / stride + 1, windows), stride, dilation, from};
}

// dx: of each element the sum over the windows that took it, or saw it, in their order.
template <class T, bool MAX> DEVICE void pool_grad(const Pool &a) {
    const Pooling &p = a.sizes;
    i64 count = p.batch * p.height * p.width * p.channels;
    UNROLL_BY(1) for (i64 i = thread_in_grid(); i < count; i += threads_of_grid()) {
        At at = at_of(i, p.height, p.width, p.channels);
        Seers rows = seers(at.row, p.window_rows, p.stride_rows, p.before_rows, p.dilation_rows, p.kernel_rows);
        Seers columns =
            seers(at.column, p.window_columns, p.stride_columns, p.before_columns, p.dilation_columns, p.kernel_columns);
        T sum = T(0);
        UNROLL_BY(1) for (i64 row = rows.first; row < rows.end; row++) {
            i64 tap_row, tap_column;
            if (!rows.tap(row, tap_row)) continue;
            UNROLL_BY(1) for (i64 column = columns.first; column < columns.end; column++) {
                if (!columns.tap(column, tap_column)) continue;
                i64 from = ((at.image * p.window_rows + row) * p.window_columns + column) * p.channels + at.channel;
                T dy = From<T>{a.x, a.narrow, 0}[from];
                if (!MAX) {
                    sum += dy / T((double)elements_in_window(p, row, column));
                } else if (a.given_places[from] == tap_row * p.kernel_columns + tap_column) {
                    sum += dy;
                }
            }
        }
        Into<T>{a.y, a.narrow, 0}.put(i, sum);
    }
}
#define MAX_POOL_GRAD(kernel, suffix, Args, T) KERNEL_OF(pool_grad, max_##suffix, Args, T, true)
#define AVG_POOL_GRAD(kernel, suffix, Args, T) KERNEL_OF(pool_grad, avg_##suffix, Args, T, false)
OF_REALS(MAX_POOL_GRAD, pool_grad, Pool)
OF_REALS(AVG_POOL_GRAD, pool_grad, Pool)

// y = x·t^−beta with t = bias + alpha·Σ x² over the channels around each.
struct ResponseNorm {
    i64 count;
    i64 channels;
    // to either side
    i64 reach;
    double alpha;
    double beta;
    double bias;
    i64 narrow;
    const void *dy;
    const void *x;
    const void *y;
    void *out;
};

// The first and the last channel around that of element i.
DEVICE void around(const ResponseNorm &a, i64 i, i64 &first, i64 &end) {
    i64 channel = i % a.channels, behind = a.channels - 1 - channel;
    first = i - least(channel, a.reach);
    end = i + least(behind, a.reach) + 1;
}

template <class T> DEVICE T response(const ResponseNorm &a, i64 i) {
    i64 first, end;
    around(a, i, first, end);
    T sum = T(0);
    UNROLL_BY(1) for (i64 j = first; j < end; j++) {
        T x = From<T>{a.x, a.narrow, 0}[j];
        sum += x * x;
    }
    return (T)a.bias + (T)a.alpha * sum;
}

template <class T> DEVICE void response_norm(const ResponseNorm &a) {
    UNROLL_BY(1) for (i64 i = thread_in_grid(); i < a.count; i += threads_of_grid())
        Into<T>{a.out, a.narrow, 0}.put(i, From<T>{a.x, a.narrow, 0}[i] * pow_of(response<T>(a, i), -(T)a.beta));
}
OF_REALS(KERNEL_OF, response_norm, ResponseNorm)

// dxᵢ = dyᵢ·tᵢ^−beta − 2·alpha·beta·xᵢ·Σ dyⱼ·yⱼ/tⱼ over the channels around i.
template <class T> DEVICE void response_norm_grad(const ResponseNorm &a) {
    From<T> x = {a.x, a.narrow, 0}, y = {a.y, a.narrow, 0}, dy = {a.dy, a.narrow, 0};
    UNROLL_BY(1) for (i64 i = thread_in_grid(); i < a.count; i += threads_of_grid()) {
        i64 first, end;
        around(a, i, first, end);
        T sum = T(0);
        UNROLL_BY(1) for (i64 j = first; j < end; j++)
            sum += dy[j] * y[j] / response<T>(a, j);
        T own = dy[i] * pow_of(response<T>(a, i), -(T)a.beta);
        Into<T>{a.out, a.narrow, 0}.put(i, own - T(2) * (T)a.alpha * (T)a.beta * x[i] * sum);
    }
}
OF_REALS(KERNEL_OF, response_norm_grad, ResponseNorm)
