// Matrix products.
#include "product.cuh"

// A matrix of which a row and a place along the inner dimension lie so far apart.
template <class S> struct Matrix {
    typedef T_OF(S) T;
    typedef i64 Row;
    typedef i64 Depth;
    const S *elements;
    i64 rows, end, row_step, depth_step;
    DEVICE_IN bool along_depth() const { return depth_step == 1; }
    DEVICE_IN i64 row(i64 row) const { return row < rows ? row * row_step : -1; }
    DEVICE_IN i64 depth(i64 depth) const { return depth < end ? depth * depth_step : -1; }
    DEVICE_IN T at(i64 row, i64 depth) const { return row < 0 || depth < 0 ? T(0) : load(elements[row + depth]); }
};

struct Product {
    Tiling tiling;
    const void *a;
    i64 a_row;
    i64 a_depth;
    // from one product to the next
    i64 a_batch;
    const void *b;
    i64 b_column;
    i64 b_depth;
    i64 b_batch;
    void *y;
    void *partial;
};

template <class S, i32 Q> DEVICE void product(const Product &args) {
    typedef T_OF(S) T;
    SHARED(Slices<T_OF(S) COMMA Q>, slices);
    const Tiling &tiling = args.tiling;
    Tile tile = tile_of(tiling, SIDE * QUAD * Q);
    i64 result = tiling.rows * tiling.columns;
    Matrix<S> a = {(const S *)args.a + tile.batch * args.a_batch, tiling.rows, tile.end, args.a_row, args.a_depth};
    Matrix<S> b = {(const S *)args.b + tile.batch * args.b_batch, tiling.columns, tile.end, args.b_column, args.b_depth};
    T *partial = args.partial ? (T *)args.partial + (tile.part * tiling.batch + tile.batch) * result : nullptr;
    IntoMatrix<S> out = {(S *)args.y + tile.batch * result, partial, tiling.rows, tiling.columns};
    tile_product<Q>(slices, a, b, out, tile.row, tile.column, tile.depth, tile.end);
}
BLOCK_KERNEL_OF(product, f32, Product, float, 1)
BLOCK_KERNEL_OF(product, f64, Product, double, 1)
BLOCK_KERNEL_OF(product, bf16, Product, bf16, 1)
BLOCK_KERNEL_OF(product, wide_f32, Product, float, 2)
BLOCK_KERNEL_OF(product, wide_bf16, Product, bf16, 2)

// The sum of parts that lie one behind the other, in their order. Where a row is columns of groups, the result has the
// groups' elements side by side: a weight's gradient is summed by taps, and kept by channels.
struct SumParts {
    i64 count;
    i64 parts;
    const void *partial;
    void *y;
    // 1 where nothing changes places
    i64 groups;
    i64 group;
};

template <class S> DEVICE void sum_parts(const SumParts &a) {
    typedef T_OF(S) T;
    UNROLL_BY(1) for (i64 i = thread_in_grid(); i < a.count; i += threads_of_grid()) {
        const T *partial = (const T *)a.partial + i;
        T sum = partial[0];
        UNROLL_BY(4) for (i64 part = 1; part < a.parts; part++) sum += partial[part * a.count];
        i64 at = i;
        if (a.groups > 1) {
            i64 row = i / (a.groups * a.group), group = i / a.group % a.groups, place = i % a.group;
            at = (row * a.group + place) * a.groups + group;
        }
        store((S *)a.y + at, sum);
    }
}
OF_FLOATS(KERNEL_OF, sum_parts, SumParts)
