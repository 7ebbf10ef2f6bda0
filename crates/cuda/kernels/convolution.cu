// Convolutions of images [n,h,w,c], as matrix products whose operands are brought from where a window looks: no column is
// stored. Where groups are narrow a thread makes each result.
#include "product.cuh"

// A division by a number that is known before: of what is below 2³¹ (Granlund and Montgomery 1994).
struct Divider {
    i64 by;
    i64 multiplier;
    i64 shift;
};

DEVICE i32 over(const Divider &divider, i32 n) { return (i32)((u64)(u32)n * (u64)divider.multiplier >> divider.shift); }

// Where windows lie: window (row, column) looks at rows row·stride − before + dilation·(0..kernel), columns likewise.
struct Images {
    i64 height;
    i64 width;
    i64 channels;
    i64 window_rows;
    i64 window_columns;
    i64 outputs;
    // a group's
    i64 group_channels;
    i64 group_outputs;
    i64 kernel_rows;
    i64 kernel_columns;
    i64 stride_rows;
    i64 stride_columns;
    i64 dilation_rows;
    i64 dilation_columns;
    i64 before_rows;
    i64 before_columns;
    Divider by_width;
    Divider by_height;
    Divider by_window_columns;
    Divider by_window_rows;
    Divider by_group_channels;
    Divider by_group_outputs;
    Divider by_kernel_columns;
};

// A place of an image: where the image begins, a row and a column. Nothing where it begins below 0.
struct Place {
    i64 image;
    i32 row, column;
};

// A place of a kernel: rows and columns from the first, and a channel. Nothing where that is below 0.
struct Tap {
    i32 row, column, channel;
};

// Position `at` of images that have so many rows and columns, of so many elements.
DEVICE Place place_of(i64 at, i64 end, const Divider &columns, const Divider &rows, i64 elements) {
    if (at >= end) return Place{-1, 0, 0};
    i32 above = over(columns, (i32)at), image = over(rows, above);
    return Place{image * elements, above - image * (i32)rows.by, (i32)at - above * (i32)columns.by};
}

DEVICE Tap tap_of(const Images &images, i64 at, i64 end, const Divider &channels) {
    if (at >= end) return Tap{0, 0, -1};
    i32 tap = over(channels, (i32)at), row = over(images.by_kernel_columns, tap);
    i32 column = tap - row * (i32)images.kernel_columns;
    i32 channel = (i32)at - tap * (i32)channels.by;
    return Tap{row * (i32)images.dilation_rows, column * (i32)images.dilation_columns, channel};
}

// Rows are windows, places along the inner dimension are taps by channels: what the windows look at.
template <class Real> struct Patches {
    typedef Real T;
    typedef Place Row;
    typedef Tap Depth;
    const Images &images;
    Factors<T> x;
    i64 rows, end;
    DEVICE_IN bool along_depth() const { return true; }
    DEVICE_IN Place row(i64 at) const {
        i64 elements = images.height * images.width * images.channels;
        Place place = place_of(at, rows, images.by_window_columns, images.by_window_rows, elements);
        place.row = place.row * (i32)images.stride_rows - (i32)images.before_rows;
        place.column = place.column * (i32)images.stride_columns - (i32)images.before_columns;
        return place;
    }
    DEVICE_IN Tap depth(i64 at) const { return tap_of(images, at, end, images.by_group_channels); }
    DEVICE_IN T at(const Place &place, const Tap &tap) const {
        i32 row = place.row + tap.row, column = place.column + tap.column;
        bool is_there = place.image >= 0 && tap.channel >= 0 && row >= 0 && row < (i32)images.height && column >= 0 &&
                        column < (i32)images.width;
        if (!is_there) return T(0);
        return x[place.image + ((i64)row * images.width + column) * images.channels + tap.channel];
    }
};

// The same with rows and the inner dimension exchanged.
template <class Real> struct PatchesTurned {
    typedef Real T;
    typedef Tap Row;
    typedef Place Depth;
    Patches<T> patches;
    DEVICE_IN bool along_depth() const { return false; }
    DEVICE_IN Tap row(i64 at) const { return patches.depth(at); }
    DEVICE_IN Place depth(i64 at) const { return patches.row(at); }
    DEVICE_IN T at(const Tap &tap, const Place &place) const { return patches.at(place, tap); }
};

// Rows are places of the images, places along the inner dimension are taps by outputs: the windows that looked there.
template <class Real> struct Lookers {
    typedef Real T;
    typedef Place Row;
    typedef Tap Depth;
    const Images &images;
    Factors<T> dy;
    i64 rows, end;
    DEVICE_IN bool along_depth() const { return true; }
    DEVICE_IN Place row(i64 at) const {
        i64 elements = images.window_rows * images.window_columns * images.outputs;
        Place place = place_of(at, rows, images.by_width, images.by_height, elements);
        place.row += (i32)images.before_rows;
        place.column += (i32)images.before_columns;
        return place;
    }
    DEVICE_IN Tap depth(i64 at) const { return tap_of(images, at, end, images.by_group_outputs); }
    DEVICE_IN T at(const Place &place, const Tap &tap) const {
        i32 row = place.row - tap.row, column = place.column - tap.column;
        if (place.image < 0 || tap.channel < 0 || row < 0 || column < 0) return T(0);
        i32 rows_apart = (i32)images.stride_rows, columns_apart = (i32)images.stride_columns;
        if (rows_apart != 1 || columns_apart != 1) {
            i32 row_rest = row % rows_apart, column_rest = column % columns_apart;
            if (row_rest != 0 || column_rest != 0) return T(0);
            row /= rows_apart;
            column /= columns_apart;
        }
        if (row >= (i32)images.window_rows || column >= (i32)images.window_columns) return T(0);
        return dy[place.image + ((i64)row * images.window_columns + column) * images.outputs + tap.channel];
    }
};

// y has rows of all groups; of parts of the inner dimension `count` elements for each.
struct Convolution {
    Tiling tiling;
    Images images;
    const void *a;
    const void *b;
    // of both: as Factors have it
    i64 narrow;
    void *y;
    i64 y_narrow;
    i64 count;
};

// y: windows by outputs. b is the weight with a row for each output: taps by channels.
template <class T, i32 Q> DEVICE void convolve(const Convolution &args) {
    SHARED(Room<T COMMA Q>, room);
    const Images &images = args.images;
    const Tiling &tiling = args.tiling;
    Tile tile = tile_of(tiling, SIDE * QUAD * Q);
    i64 first = tile.batch * images.group_outputs;
    Factors<T> x = {args.a, args.narrow, tile.batch * images.group_channels};
    Factors<T> w = {args.b, args.narrow, first * tiling.depth};
    Patches<T> a = {images, x, tiling.rows, tile.end};
    Matrix<T> b = {w, tiling.columns, tile.end, tiling.depth, 1};
    Into<T> y = {args.y, args.y_narrow, tile.part * args.count + first};
    IntoRows<T> out = {y, tiling.rows, tiling.columns, images.outputs};
    tile_product<Q>(room, a, b, out, tile.row, tile.column, tile.depth, tile.end);
}
BLOCK_KERNEL_OF(convolve, f32, Convolution, float, 1)
BLOCK_KERNEL_OF(convolve, f64, Convolution, double, 1)
BLOCK_KERNEL_OF(convolve, wide_f32, Convolution, float, 2)

// dx: places by channels. b is the weight with a row for each channel: taps by outputs.
template <class T, i32 Q> DEVICE void convolve_grad_input(const Convolution &args) {
    SHARED(Room<T COMMA Q>, room);
    const Images &images = args.images;
    const Tiling &tiling = args.tiling;
    Tile tile = tile_of(tiling, SIDE * QUAD * Q);
    i64 first = tile.batch * images.group_channels;
    Factors<T> dy = {args.a, args.narrow, tile.batch * images.group_outputs};
    Factors<T> w = {args.b, args.narrow, first * tiling.depth};
    Lookers<T> a = {images, dy, tiling.rows, tile.end};
    Matrix<T> b = {w, tiling.columns, tile.end, tiling.depth, 1};
    Into<T> dx = {args.y, args.y_narrow, tile.part * args.count + first};
    IntoRows<T> out = {dx, tiling.rows, tiling.columns, images.channels};
    tile_product<Q>(room, a, b, out, tile.row, tile.column, tile.depth, tile.end);
}
BLOCK_KERNEL_OF(convolve_grad_input, f32, Convolution, float, 1)
BLOCK_KERNEL_OF(convolve_grad_input, f64, Convolution, double, 1)
BLOCK_KERNEL_OF(convolve_grad_input, wide_f32, Convolution, float, 2)

// The weight's gradient, outputs by taps and channels, as parts that are summed into the order in which a weight is stored.
template <class T, i32 Q> DEVICE void convolve_grad_weight(const Convolution &args) {
    SHARED(Room<T COMMA Q>, room);
    const Images &images = args.images;
    const Tiling &tiling = args.tiling;
    Tile tile = tile_of(tiling, SIDE * QUAD * Q);
    i64 output = tile.batch * images.group_outputs;
    Factors<T> dy = {args.a, args.narrow, output};
    Factors<T> x = {args.b, args.narrow, tile.batch * images.group_channels};
    Matrix<T> a = {dy, tiling.rows, tile.end, 1, images.outputs};
    // what is a row's end there is the inner dimension's here
    PatchesTurned<T> b = {Patches<T>{images, x, tile.end, tiling.columns}};
    Into<T> dw = {args.y, args.y_narrow, tile.part * args.count + output * tiling.columns};
    IntoRows<T> out = {dw, tiling.rows, tiling.columns, tiling.columns};
    tile_product<Q>(room, a, b, out, tile.row, tile.column, tile.depth, tile.end);
}
BLOCK_KERNEL_OF(convolve_grad_weight, f32, Convolution, float, 1)
BLOCK_KERNEL_OF(convolve_grad_weight, f64, Convolution, double, 1)
BLOCK_KERNEL_OF(convolve_grad_weight, wide_f32, Convolution, float, 2)

// Of narrow groups: a thread for each result, with the weight as it is stored.
struct ByThreads {
    Images images;
    // windows or places of all images
    i64 positions;
    const void *a;
    const void *b;
    // of both, as Factors have it
    i64 narrow;
    void *y;
    i64 y_narrow;
    // of the weight's gradient: parts of the positions, whose sums are not narrow
    i64 parts;
    i64 part_positions;
};

template <class T> DEVICE void thread_convolve(const ByThreads &a) {
    const Images &images = a.images;
    i64 taps = images.kernel_rows * images.kernel_columns;
    UNROLL_BY(1) for (i64 i = thread_in_grid(); i < a.positions * images.outputs; i += threads_of_grid()) {
        i64 output = i % images.outputs, first = output / images.group_outputs * images.group_channels;
        Patches<T> patches = {images, {a.a, a.narrow, first}, a.positions, taps * images.group_channels};
        Factors<T> w = {a.b, a.narrow, output * images.group_channels * taps};
        Place place = patches.row(i / images.outputs);
        T sum = T(0);
        UNROLL_BY(1) for (i64 k = 0; k < patches.end; k++) {
            i64 tap = k / images.group_channels, channel = k % images.group_channels;
            sum += patches.at(place, patches.depth(k)) * w[channel * taps + tap];
        }
        Into<T>{a.y, a.y_narrow, 0}.put(i, sum);
    }
}
OF_REALS(KERNEL_OF, thread_convolve, ByThreads)

template <class T> DEVICE void thread_grad_input(const ByThreads &a) {
    const Images &images = a.images;
    i64 taps = images.kernel_rows * images.kernel_columns;
    Factors<T> w = {a.b, a.narrow, 0};
    UNROLL_BY(1) for (i64 i = thread_in_grid(); i < a.positions * images.channels; i += threads_of_grid()) {
        i64 channel = i % images.channels, first = channel / images.group_channels * images.group_outputs;
        Lookers<T> lookers = {images, {a.a, a.narrow, first}, a.positions, taps * images.group_outputs};
        Place place = lookers.row(i / images.channels);
        T sum = T(0);
        UNROLL_BY(1) for (i64 k = 0; k < lookers.end; k++) {
            i64 tap = k / images.group_outputs, output = first + k % images.group_outputs;
            i64 row = output * images.group_channels + channel % images.group_channels;
            sum += lookers.at(place, lookers.depth(k)) * w[row * taps + tap];
        }
        Into<T>{a.y, a.y_narrow, 0}.put(i, sum);
    }
}
OF_REALS(KERNEL_OF, thread_grad_input, ByThreads)

template <class T> DEVICE void thread_grad_weight(const ByThreads &a) {
    const Images &images = a.images;
    i64 taps = images.kernel_rows * images.kernel_columns, deep = images.group_channels * taps;
    i64 weights = images.outputs * deep;
    Factors<T> dy = {a.a, a.narrow, 0};
    UNROLL_BY(1) for (i64 i = thread_in_grid(); i < weights * a.parts; i += threads_of_grid()) {
        // neighbours have neighbouring outputs, whose gradients lie side by side
        i64 output = i % images.outputs, k = i / images.outputs % deep, part = i / weights;
        i64 first = output / images.group_outputs * images.group_channels;
        Patches<T> patches = {images, {a.b, a.narrow, first}, a.positions, deep};
        Tap tap = patches.depth(k);
        T sum = T(0);
        i64 end = least((part + 1) * a.part_positions, a.positions);
        UNROLL_BY(1) for (i64 at = part * a.part_positions; at < end; at++)
            sum += dy[at * images.outputs + output] * patches.at(patches.row(at), tap);
        i64 channel = k % images.group_channels, stored = (output * images.group_channels + channel) * taps;
        ((T *)a.y)[part * weights + stored + k / images.group_channels] = sum;
    }
}
OF_REALS(KERNEL_OF, thread_grad_weight, ByThreads)
