// Less of a gradient before it crosses, and a gradient of that: a byte for each element and a scale for each block of them, or the
// elements of the largest magnitude. What is left is added to the next gradient.
#include "device.cuh"

// The magnitude of a number as it is compared: the larger, the later; a NaN behind all.
DEVICE u32 magnitude(float x) { return bits_of(x) & 0x7fffffffu; }

struct Quantize {
    i64 count;
    i64 block;
    float *residual;
    const float *x;
    u8 *q;
    float *scales;
};

// A warp for each block of elements. Added to 1.5·2²³ a number is rounded to a whole one, to nearest even, whose lowest byte is that
// of the sum.
BLOCK_KERNEL(quantize, Quantize) {
    const float WHOLE = 12582912.0f, QUANTA = 127.0f;
    i64 blocks = (a.count + a.block - 1) / a.block;
    UNROLL_BY(1) for (i64 block = ByWarp::first(); block < blocks; block += ByWarp::step()) {
        i64 first = block * a.block, end = least(first + a.block, a.count);
        u32 most = 0;
        UNROLL_BY(1) for (i64 i = first + lane(); i < end; i += WARP) {
            float e = a.residual[i] + a.x[i];
            a.residual[i] = e;
            most = magnitude(e) > most ? magnitude(e) : most;
        }
        most = warp_max(most);
        float scale = float_of(most < 0x7f800000u ? most : 0x7fc00000u) / QUANTA;
        UNROLL_BY(1) for (i64 i = first + lane(); i < end; i += WARP) {
            float e = a.residual[i], quanta = WHOLE;
            if (scale > 0.0f) {
                float by = e / scale;
                quanta += by < -QUANTA ? -QUANTA : by > QUANTA ? QUANTA : by;
            }
            a.q[i] = (u8)bits_of(quanta);
            a.residual[i] = e - (quanta - WHOLE) * scale;
        }
        if (lane() == 0) a.scales[block] = scale;
    }
}

struct Dequantize {
    i64 count;
    i64 block;
    // of the first element, in the whole
    i64 first;
    const u8 *q;
    const float *scales;
    float *y;
};

KERNEL(dequantize, Dequantize) {
    UNROLL_BY(1) for (i64 i = thread_in_grid(); i < a.count; i += threads_of_grid()) {
        i32 quanta = a.q[i] < 128 ? (i32)a.q[i] : (i32)a.q[i] - 256;
        a.y[i] = (float)quanta * a.scales[(a.first + i) / a.block];
    }
}

// Magnitudes are counted by their upper 15 bits, then those of the value that is found by their lower 16.
const i32 LOWER = 16;

struct AddGradient {
    i64 count;
    float *residual;
    const float *x;
    u64 *counts;
};

KERNEL(add_gradient, AddGradient) {
    UNROLL_BY(1) for (i64 i = thread_in_grid(); i < a.count; i += threads_of_grid()) {
        float e = a.residual[i] + a.x[i];
        a.residual[i] = e;
        atomicAdd(&a.counts[magnitude(e) >> LOWER], 1ull);
    }
}

// Where the last of the largest is, and how many of those that are there are among them.
struct Found {
    u64 at;
    i64 equals;
};

struct FindLast {
    i64 bins;
    const u64 *counts;
    // of all elements, or of those that were found first
    i64 wanted;
    const Found *before;
    Found *found;
};

struct Sums {
    i64 of_thread[THREADS];
};

BLOCK_KERNEL(find_last, FindLast) {
    SHARED(Sums, sums);
    // from the top, as many bins to each thread
    i64 each = a.bins / THREADS, top = a.bins - (i64)threadIdx.x * each;
    i64 own = 0;
    UNROLL_BY(1) for (i64 i = 1; i <= each; i++) own += (i64)a.counts[top - i];
    sums.of_thread[threadIdx.x] = own;
    __syncthreads();
    if (threadIdx.x == 0) {
        i64 left = a.before ? a.before->equals : a.wanted;
        i32 thread = 0;
        UNROLL_BY(1) while (thread < THREADS - 1 && sums.of_thread[thread] < left) left -= sums.of_thread[thread++];
        i64 at = a.bins - (i64)thread * each - 1, last = at - each + 1;
        UNROLL_BY(1) while (at > last && (i64)a.counts[at] < left) left -= (i64)a.counts[at--];
        a.found->at = (u64)at;
        a.found->equals = left;
    }
}

struct CountLower {
    i64 count;
    const float *residual;
    const Found *upper;
    u64 *counts;
};

KERNEL(count_lower, CountLower) {
    UNROLL_BY(1) for (i64 i = thread_in_grid(); i < a.count; i += threads_of_grid()) {
        u32 own = magnitude(a.residual[i]);
        if (own >> LOWER == a.upper->at) atomicAdd(&a.counts[own & 0xffffu], 1ull);
    }
}

// Elements that a block takes at a time, as many to each of its threads, one behind the other.
const i64 EACH = 16, PIECE = EACH * THREADS;

// By piece: how many are larger than the least that is chosen, and how many are equal to it; then where it writes the first of its
// own, and how many of its equals it takes.
struct Piece {
    i64 larger;
    i64 equals;
};

struct Choose {
    i64 count;
    float *residual;
    const Found *upper;
    const Found *lower;
    Piece *pieces;
    i32 *indices;
    float *values;
};

DEVICE u32 least_chosen(const Choose &a) { return (u32)(a.upper->at << LOWER | a.lower->at); }

// What each thread of a block has of a piece.
DEVICE Piece own_of(const Choose &a, i64 piece) {
    u32 least_of_all = least_chosen(a);
    i64 first = piece * PIECE + threadIdx.x * EACH, end = least(first + EACH, a.count);
    Piece own = {0, 0};
    UNROLL_BY(1) for (i64 i = first; i < end; i++) {
        u32 of_i = magnitude(a.residual[i]);
        own.larger += of_i > least_of_all;
        own.equals += of_i == least_of_all;
    }
    return own;
}

BLOCK_KERNEL(count_pieces, Choose) {
    SHARED(Meeting<i64>, meeting);
    i64 pieces = (a.count + PIECE - 1) / PIECE;
    UNROLL_BY(1) for (i64 piece = ByBlock::first(); piece < pieces; piece += ByBlock::step()) {
        Piece own = own_of(a, piece);
        own.larger = ByBlock::sum(own.larger, meeting);
        own.equals = ByBlock::sum(own.equals, meeting);
        if (threadIdx.x == 0) a.pieces[piece] = own;
    }
}

// One thread goes over the pieces, of which there are few.
KERNEL(order_pieces, Choose) {
    if (thread_in_grid() != 0) return;
    i64 pieces = (a.count + PIECE - 1) / PIECE, at = 0, left = a.lower->equals;
    UNROLL_BY(1) for (i64 piece = 0; piece < pieces; piece++) {
        Piece own = a.pieces[piece];
        i64 equals = least(own.equals, left);
        a.pieces[piece] = {at, equals};
        at += own.larger + equals;
        left -= equals;
    }
}

struct Places {
    Piece of_thread[THREADS];
};

BLOCK_KERNEL(choose, Choose) {
    SHARED(Places, places);
    i64 pieces = (a.count + PIECE - 1) / PIECE;
    u32 least_of_all = least_chosen(a);
    UNROLL_BY(1) for (i64 piece = ByBlock::first(); piece < pieces; piece += ByBlock::step()) {
        places.of_thread[threadIdx.x] = own_of(a, piece);
        __syncthreads();
        if (threadIdx.x == 0) {
            i64 at = a.pieces[piece].larger, left = a.pieces[piece].equals;
            UNROLL_BY(1) for (i32 thread = 0; thread < THREADS; thread++) {
                Piece own = places.of_thread[thread];
                i64 equals = least(own.equals, left);
                places.of_thread[thread] = {at, equals};
                at += own.larger + equals;
                left -= equals;
            }
        }
        __syncthreads();
        Piece own = places.of_thread[threadIdx.x];
        i64 first = piece * PIECE + threadIdx.x * EACH, end = least(first + EACH, a.count);
        UNROLL_BY(1) for (i64 i = first; i < end; i++) {
            u32 of_i = magnitude(a.residual[i]);
            if (of_i < least_of_all || (of_i == least_of_all && own.equals == 0)) continue;
            own.equals -= of_i == least_of_all;
            a.indices[own.larger] = (i32)i;
            a.values[own.larger++] = a.residual[i];
            a.residual[i] = 0.0f;
        }
        __syncthreads();
    }
}

// Over zeros.
struct ScatterElements {
    i64 count;
    // elements of y, and the first one's number in the whole
    i64 elements;
    i64 first;
    const i32 *indices;
    const float *values;
    float *y;
};

KERNEL(scatter_elements, ScatterElements) {
    UNROLL_BY(1) for (i64 i = thread_in_grid(); i < a.count; i += threads_of_grid()) {
        i64 at = (i64)a.indices[i] - a.first;
        // those of other rows are for others
        if (at >= 0 && at < a.elements) a.y[at] = a.values[i];
    }
}
