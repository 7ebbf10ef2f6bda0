// Bytes that are moved: runs of them, rows by their index, and tiles that are turned.
#include "device.cuh"

// The widest word that all of these are multiples of: addresses, distances, lengths.
DEVICE i64 word(u64 all) { return all % 16 == 0 ? 16 : all % 8 == 0 ? 8 : all % 4 == 0 ? 4 : all % 2 == 0 ? 2 : 1; }

struct alignas(16) Word16 {
    u64 half[2];
};

// Each of several tensors is rows of bytes, which are put into rows of the target, one tensor behind the other.
struct CopyRows {
    i64 rows;
    void *target;
    i64 target_row;
    i64 count;
    const void *source[16];
    i64 source_row[16];
    // bytes of a row that are copied
    i64 run[16];
    // where they go in a row of the target
    i64 start[16];
};

template <class W> DEVICE void copy_words(const CopyRows &a, i64 part) {
    i64 run = a.run[part] / sizeof(W);
    const char *source = (const char *)a.source[part];
    char *target = (char *)a.target + a.start[part];
    UNROLL_BY(1) for (i64 i = thread_in_grid(); i < a.rows * run; i += threads_of_grid()) {
        i64 row = i / run, at = i % run;
        ((W *)(target + row * a.target_row))[at] = ((const W *)(source + row * a.source_row[part]))[at];
    }
}

DEVICE void copy_part(const CopyRows &a, i64 part) {
    u64 all = (u64)a.target | (u64)a.source[part] | (u64)a.target_row;
    switch (word(all | (u64)a.source_row[part] | (u64)a.run[part] | (u64)a.start[part])) {
    case 16:
        return copy_words<Word16>(a, part);
    case 8:
        return copy_words<u64>(a, part);
    case 4:
        return copy_words<u32>(a, part);
    case 2:
        return copy_words<u16>(a, part);
    default:
        return copy_words<u8>(a, part);
    }
}

KERNEL(copy_rows, CopyRows) {
    UNROLL_BY(1) for (i64 part = 0; part < a.count; part++) copy_part(a, part);
}

// Rows of bytes, with zeros before and behind each.
struct PadRows {
    i64 rows;
    const void *x;
    void *y;
    i64 before;
    i64 run;
    i64 after;
};

template <class W> DEVICE void pad_words(const PadRows &a) {
    i64 before = a.before / sizeof(W), run = a.run / sizeof(W), padded = before + run + a.after / sizeof(W);
    W zero = {};
    UNROLL_BY(1) for (i64 i = thread_in_grid(); i < a.rows * padded; i += threads_of_grid()) {
        i64 row = i / padded, at = i % padded - before;
        ((W *)a.y)[i] = at >= 0 && at < run ? ((const W *)a.x)[row * run + at] : zero;
    }
}

KERNEL(pad_rows, PadRows) {
    switch (word((u64)a.x | (u64)a.y | (u64)a.before | (u64)a.run | (u64)a.after)) {
    case 16:
        return pad_words<Word16>(a);
    case 8:
        return pad_words<u64>(a);
    case 4:
        return pad_words<u32>(a);
    case 2:
        return pad_words<u16>(a);
    default:
        return pad_words<u8>(a);
    }
}

// Rows of a table by their indices; a row that is not there is zeros, and a fault.
struct Gather {
    i64 named;
    i64 rows;
    i64 row_bytes;
    const void *table;
    const i32 *indices;
    void *y;
    Fault *fault;
    u64 code;
};

template <class W> DEVICE void gather_words(const Gather &a) {
    // where rows are empty, their indices are checked all the same
    i64 run = a.row_bytes > 0 ? a.row_bytes / sizeof(W) : 1;
    W zero = {};
    UNROLL_BY(1) for (i64 i = thread_in_grid(); i < a.named * run; i += threads_of_grid()) {
        i64 place = i / run, at = i % run, index = a.indices[place];
        bool is_row = index >= 0 && index < a.rows;
        if (!is_row && at == 0) report(a.fault, a.code, place, index);
        if (a.row_bytes > 0) ((W *)a.y)[i] = is_row ? ((const W *)a.table)[index * run + at] : zero;
    }
}

KERNEL(gather, Gather) {
    switch (word((u64)a.table | (u64)a.y | (u64)a.row_bytes)) {
    case 16:
        return gather_words<Word16>(a);
    case 8:
        return gather_words<u64>(a);
    case 4:
        return gather_words<u32>(a);
    case 2:
        return gather_words<u16>(a);
    default:
        return gather_words<u8>(a);
    }
}

// A tensor whose dimensions change places. Two of them are a tile: the fastest of x, and the fastest of y; where that is
// the same, the second is any other. The rest say where a tile lies in each.
struct Turn {
    const void *x;
    void *y;
    // of the first
    i64 size;
    i64 in_y;
    // of the second
    i64 other_size;
    i64 other_in_x;
    i64 other_in_y;
    i64 tiles;
    i64 count;
    i64 rest_size[8];
    i64 rest_in_x[8];
    i64 rest_in_y[8];
};

template <class W> struct TurnTile {
    W at[WARP][WARP + 1];
};

template <class W> DEVICE void turn(const Turn &a) {
    SHARED(TurnTile<W>, tile);
    i64 across = (a.size + WARP - 1) / WARP, down = (a.other_size + WARP - 1) / WARP;
    UNROLL_BY(1) for (i64 t = blockIdx.x; t < a.tiles; t += gridDim.x) {
        i64 first = t % across * WARP, other_first = t / across % down * WARP, rest = t / across / down;
        const W *x = (const W *)a.x;
        W *y = (W *)a.y;
        UNROLL_BY(1) for (i64 side = a.count - 1; side >= 0; side--) {
            i64 place = rest % a.rest_size[side];
            x += place * a.rest_in_x[side];
            y += place * a.rest_in_y[side];
            rest /= a.rest_size[side];
        }
        __syncthreads();
        UNROLL_BY(1) for (i32 row = warp(); row < WARP; row += THREADS / WARP) {
            i64 at = first + lane(), other = other_first + row;
            if (at >= a.size || other >= a.other_size) continue;
            W word = x[other * a.other_in_x + at];
            if (a.in_y == 1) {
                y[other * a.other_in_y + at] = word;
            } else {
                tile.at[row][lane()] = word;
            }
        }
        __syncthreads();
        if (a.in_y == 1) continue;
        UNROLL_BY(1) for (i32 row = warp(); row < WARP; row += THREADS / WARP) {
            i64 at = first + row, other = other_first + lane();
            if (at < a.size && other < a.other_size) y[at * a.in_y + other] = tile.at[lane()][row];
        }
    }
}
OF_WIDTHS(BLOCK_KERNEL_OF, turn, Turn)
