// Matrix products.
#include "product.cuh"

struct Factor {
    const void *at;
    // as Factors have it
    i64 narrow;
    // from a row to the next, or from a column
    i64 outer;
    i64 depth;
    // from one product to the next
    i64 batch;
};

// y has all products, one behind the other; of parts of the inner dimension those of each part.
struct Product {
    Tiling tiling;
    Factor a;
    Factor b;
    void *y;
    i64 narrow;
};

template <class T, i32 Q> DEVICE void product(const Product &args) {
    SHARED(Room<T COMMA Q>, room);
    const Tiling &tiling = args.tiling;
    const Factor &a = args.a, &b = args.b;
    Tile tile = tile_of(tiling, SIDE * QUAD * Q);
    Matrix<T> left = {{a.at, a.narrow, tile.batch * a.batch}, tiling.rows, tile.end, a.outer, a.depth};
    Matrix<T> right = {{b.at, b.narrow, tile.batch * b.batch}, tiling.columns, tile.end, b.outer, b.depth};
    i64 first = (tile.part * tiling.batch + tile.batch) * tiling.rows * tiling.columns;
    IntoRows<T> out = {{args.y, args.narrow, first}, tiling.rows, tiling.columns, tiling.columns};
    tile_product<Q>(room, left, right, out, tile.row, tile.column, tile.depth, tile.end);
}
BLOCK_KERNEL_OF(product, f32, Product, float, 1)
BLOCK_KERNEL_OF(product, f64, Product, double, 1)
BLOCK_KERNEL_OF(product, wide_f32, Product, float, 2)

// The sum of parts that lie one behind the other, in their order. Where a row is columns of groups, the result has the
// groups' elements side by side: a weight's gradient is summed by taps, and kept by channels.
struct SumParts {
    i64 count;
    i64 parts;
    const void *partial;
    void *y;
    i64 narrow;
    // 1 where nothing changes places
    i64 groups;
    i64 group;
};

template <class T> DEVICE void sum_parts(const SumParts &a) {
    Into<T> y = {a.y, a.narrow, 0};
    UNROLL_BY(1) for (i64 i = thread_in_grid(); i < a.count; i += threads_of_grid()) {
        const T *partial = (const T *)a.partial + i;
        T sum = partial[0];
        UNROLL_BY(4) for (i64 part = 1; part < a.parts; part++) sum += partial[part * a.count];
        i64 at = i;
        if (a.groups > 1) {
            i64 row = i / (a.groups * a.group), group = i / a.group % a.groups, place = i % a.group;
            at = (row * a.group + place) * a.groups + group;
        }
        y.put(at, sum);
    }
}
OF_REALS(KERNEL_OF, sum_parts, SumParts)
