// A tile of a matrix product by a block: 64·Q rows and as many columns, each thread 4·Q of both, over slices of the inner
// dimension in shared memory. Where the operands' elements come from and where the results go is passed in.
#pragma once
#include "device.cuh"

// Of the inner dimension, at a time.
const i32 SLICE = 16;
// Threads along each side of a tile, and rows of a thread that lie together.
const i32 SIDE = 16;
const i32 QUAD = 4;

// A tile's slices of both operands, the inner dimension first, with room that keeps rows apart in the banks.
template <class T, i32 Q> struct Slices {
    T a[2][SLICE][SIDE * QUAD * Q + QUAD];
    T b[2][SLICE][SIDE * QUAD * Q + QUAD];
};

// Slices, and after them half of a wide tile's sums, or all of another's, on their way out.
template <class T, i32 Q> union alignas(16) Room {
    Slices<T, Q> slices;
    T sums[SIDE * QUAD][SIDE * QUAD * Q];
};

// What a thread brings of one operand in each slice. A source has:
//   bool along_depth()     - true if neighbours in memory are neighbours along the inner dimension
//   Row row(i64)           - what is to be known of a row of the operand; rows beyond its end are fine
//   Depth depth(i64)       - the same of a place along the inner dimension
//   T at(Row, Depth)       - the element, 0 beyond an end
template <class Source, i32 Q> struct Bringer {
    typedef typename Source::T T;
    static const i32 EXTENT = SIDE * QUAD * Q;
    static const i32 COUNT = EXTENT * SLICE / THREADS;
    const Source &source;
    bool along_depth;
    typename Source::Row rows[COUNT];
    T held[COUNT];

    DEVICE_IN Bringer(const Source &source, i64 first) : source(source), along_depth(source.along_depth()) {
        i32 thread = (i32)threadIdx.x;
        UNROLL for (i32 j = 0; j < COUNT; j++) {
            i32 row = along_depth ? thread / SLICE + j * (THREADS / SLICE) : thread % EXTENT;
            rows[j] = source.row(first + row);
        }
    }

    // The elements of the slice that begins there.
    DEVICE_IN void bring(i64 first) {
        i32 thread = (i32)threadIdx.x;
        if (along_depth) {
            typename Source::Depth depth = source.depth(first + thread % SLICE);
            UNROLL for (i32 j = 0; j < COUNT; j++) held[j] = source.at(rows[j], depth);
        } else {
            UNROLL for (i32 j = 0; j < COUNT; j++) {
                i32 place = thread / EXTENT + j * (THREADS / EXTENT);
                held[j] = source.at(rows[j], source.depth(first + place));
            }
        }
    }

    DEVICE_IN void put(T (&slice)[SLICE][EXTENT + QUAD]) const {
        i32 thread = (i32)threadIdx.x;
        UNROLL for (i32 j = 0; j < COUNT; j++) {
            if (along_depth) {
                slice[thread % SLICE][thread / SLICE + j * (THREADS / SLICE)] = held[j];
            } else {
                slice[thread / EXTENT + j * (THREADS / EXTENT)][thread % EXTENT] = held[j];
            }
        }
    }
};

// out(row, column, sum) for every element of the tile that begins at these; the sum is over depth..end. Rows and columns
// beyond an operand's end are given as well.
template <i32 Q, class A, class B, class Out>
DEVICE void tile_product(Room<typename A::T, Q> &room, const A &a, const B &b, const Out &out, i64 row, i64 column,
                         i64 depth, i64 end) {
    typedef typename A::T T;
    const i32 OWN = QUAD * Q;
    i32 across = (i32)threadIdx.x % SIDE, down = (i32)threadIdx.x / SIDE;
    T sums[OWN][OWN];
    UNROLL for (i32 i = 0; i < OWN; i++) UNROLL for (i32 j = 0; j < OWN; j++) sums[i][j] = T(0);
    Bringer<A, Q> from_a(a, row);
    Bringer<B, Q> from_b(b, column);
    bool is_idle = IDLE_ON_CPU(!out.keeps(row + down * QUAD, column + across * QUAD));
    // what is brought in one turn is in shared memory in the next, and read there while more is brought
    i32 turn = 0;
    bool holds = false;
    UNROLL_BY(1) for (;; depth += SLICE) {
        bool more = depth < end;
        if (holds) {
            from_a.put(room.slices.a[turn]);
            from_b.put(room.slices.b[turn]);
            // the other half was read before the barrier of the turn before
            __syncthreads();
        }
        if (more) {
            from_a.bring(depth);
            from_b.bring(depth);
        }
        if (holds) {
            if (!is_idle) UNROLL_BY(2) for (i32 k = 0; k < SLICE; k++) {
                T left[OWN], right[OWN];
                UNROLL for (i32 i = 0; i < OWN; i++) {
                    left[i] = room.slices.a[turn][k][i / QUAD * SIDE * QUAD + down * QUAD + i % QUAD];
                    right[i] = room.slices.b[turn][k][i / QUAD * SIDE * QUAD + across * QUAD + i % QUAD];
                }
                UNROLL for (i32 i = 0; i < OWN; i++) UNROLL for (i32 j = 0; j < OWN; j++)
                    sums[i][j] = fused(left[i], right[j], sums[i][j]);
            }
            turn ^= 1;
        }
        if (!more) break;
        holds = true;
    }
    // by way of shared memory, so that neighbours write neighbours
    const i32 ROWS = SIDE * QUAD, COLUMNS = SIDE * QUAD * Q;
    UNROLL for (i32 q = 0; q < Q; q++) {
        __syncthreads();
        UNROLL for (i32 i = 0; i < QUAD; i++) UNROLL for (i32 j = 0; j < OWN; j++) {
            i32 beside = j / QUAD * SIDE * QUAD + across * QUAD + j % QUAD;
            room.sums[down * QUAD + i][beside] = sums[q * QUAD + i][j];
        }
        __syncthreads();
        UNROLL_BY(1) for (i32 at = (i32)threadIdx.x; at < ROWS * COLUMNS; at += THREADS)
            out(row + q * ROWS + at / COLUMNS, column + at % COLUMNS, room.sums[at / COLUMNS][at % COLUMNS]);
    }
}

// Tiles, and parts of the inner dimension, of which each block has one of both.
struct Tiling {
    i64 rows;
    i64 columns;
    i64 depth;
    // along the columns
    i64 across;
    i64 down;
    // products, one behind the other
    i64 batch;
    // of the inner dimension, each of so many places
    i64 parts;
    i64 part_depth;
};

struct Tile {
    i64 row;
    i64 column;
    i64 batch;
    i64 part;
    i64 depth;
    i64 end;
};

// The tile of this block. Blocks that follow each other have neighbouring columns.
DEVICE Tile tile_of(const Tiling &tiling, i32 extent) {
    i64 at = blockIdx.x;
    Tile tile;
    tile.column = at % tiling.across * extent;
    at /= tiling.across;
    tile.row = at % tiling.down * extent;
    at /= tiling.down;
    tile.part = at % tiling.parts;
    tile.batch = at / tiling.parts;
    tile.depth = tile.part * tiling.part_depth;
    tile.end = least(tile.depth + tiling.part_depth, tiling.depth);
    return tile;
}

// A matrix of which a row and a place along the inner dimension lie so far apart.
template <class Real> struct Matrix {
    typedef Real T;
    typedef i64 Row;
    typedef i64 Depth;
    Factors<T> elements;
    i64 rows, end, row_step, depth_step;
    DEVICE_IN bool along_depth() const { return depth_step == 1; }
    DEVICE_IN i64 row(i64 row) const { return row < rows ? row * row_step : -1; }
    DEVICE_IN i64 depth(i64 depth) const { return depth < end ? depth * depth_step : -1; }
    DEVICE_IN T at(i64 row, i64 depth) const { return row < 0 || depth < 0 ? T(0) : elements[row + depth]; }
};

// Where sums go: rows that lie so far apart.
template <class T> struct IntoRows {
    Into<T> y;
    i64 rows, columns, step;
    DEVICE_IN bool keeps(i64 row, i64 column) const { return row < rows && column < columns; }
    DEVICE_IN void operator()(i64 row, i64 column, T sum) const {
        if (row < rows && column < columns) y.put(row * step + column, sum);
    }
};
