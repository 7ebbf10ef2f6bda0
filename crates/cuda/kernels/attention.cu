// Attention whose products are never stored: a block goes over tiles of keys, or of queries, and keeps what its own rows
// need (Dao 2023). Sums are made in the order of the tiles. And rotary positions.
#include "device.cuh"

// Of the inner dimension, at a time; threads along each side of a tile.
const i32 SLICE = 16;
const i32 SIDE = 16;

enum Mask { NONE = 0, CAUSAL, ADDED, SHOWN };

// Elements from one sample, head and position to the next.
struct Steps {
    i64 batch;
    i64 head;
    i64 position;
};

struct Attention {
    i64 batch;
    i64 heads;
    // heads of keys
    i64 groups;
    i64 queries;
    i64 keys;
    i64 depth;
    double scale;
    // of all but the statistics
    i64 narrow;
    Steps q_steps;
    Steps k_steps;
    i64 mask;
    const void *masked;
    // by sample, head, query and key
    i64 mask_steps[4];
    const void *q;
    const void *k;
    const void *v;
    void *y;
    // [batch, heads, queries], not narrow
    void *lse;
    // of the gradient
    const void *dy;
    // Σ dy∘y of each query, [batch, heads, queries]
    void *level;
    void *dq;
    void *dk;
    void *dv;
};

// Rows of elements, of which each has `depth`: where they are and how many.
template <class T> struct Rows {
    From<T> elements;
    i64 step, count;
    DEVICE_IN T at(i64 row, i64 place, i64 depth) const {
        return row < count && place < depth ? elements[row * step + place] : T(0);
    }
};

// f64 has smaller tiles: its numbers take two registers.
template <class T> struct Own {
    static const i32 COUNT = 4;
};
template <> struct Own<double> {
    static const i32 COUNT = 2;
};

template <class T> struct alignas(16) Room {
    static const i32 OWN = Own<T>::COUNT;
    static const i32 TILE = SIDE * OWN;
    T left[SLICE][TILE + 4];
    T right[SLICE][TILE + 4];
    T tile[TILE][TILE + 1];
};

// A thread's part of a tile: rows down·OWN.. and columns across·OWN..
template <class T> struct Part {
    static const i32 OWN = Own<T>::COUNT;
    T at[OWN][OWN];
    DEVICE_IN void clear() {
        UNROLL for (i32 i = 0; i < OWN; i++) UNROLL for (i32 j = 0; j < OWN; j++) at[i][j] = T(0);
    }
};

DEVICE i32 across() { return (i32)threadIdx.x % SIDE; }
DEVICE i32 down() { return (i32)threadIdx.x / SIDE; }

// sums ← products of rows of a, from `row` on, with rows of b, from `column` on.
template <class T>
DEVICE void rows_by_rows(Room<T> &room, const Rows<T> &a, i64 row, const Rows<T> &b, i64 column, i64 depth,
                         Part<T> &sums) {
    const i32 OWN = Own<T>::COUNT;
    i32 place = (i32)threadIdx.x % SLICE, line = (i32)threadIdx.x / SLICE;
    sums.clear();
    UNROLL_BY(1) for (i64 first = 0; first < depth; first += SLICE) {
        __syncthreads();
        UNROLL for (i32 j = 0; j < OWN; j++) {
            room.left[place][line + j * SIDE] = a.at(row + line + j * SIDE, first + place, depth);
            room.right[place][line + j * SIDE] = b.at(column + line + j * SIDE, first + place, depth);
        }
        __syncthreads();
        UNROLL_BY(2) for (i32 k = 0; k < SLICE; k++) {
            T left[OWN], right[OWN];
            UNROLL for (i32 i = 0; i < OWN; i++) {
                left[i] = room.left[k][down() * OWN + i];
                right[i] = room.right[k][across() * OWN + i];
            }
            UNROLL for (i32 i = 0; i < OWN; i++) UNROLL for (i32 j = 0; j < OWN; j++)
                sums.at[i][j] = fused(left[i], right[j], sums.at[i][j]);
        }
    }
}

// sums ← sums + tile·b, or + tileᵀ·b, for columns of b from `column` on: of b as many rows, from `row` on, as the tile has.
template <class T, bool TURNED>
DEVICE void tile_by_rows(Room<T> &room, const Rows<T> &b, i64 row, i64 column, i64 depth, Part<T> &sums) {
    const i32 OWN = Own<T>::COUNT, TILE = SIDE * OWN;
    i32 place = (i32)threadIdx.x % TILE, line = (i32)threadIdx.x / TILE;
    UNROLL_BY(1) for (i32 first = 0; first < TILE && row + first < b.count; first += SLICE) {
        __syncthreads();
        UNROLL for (i32 j = 0; j < OWN; j++) {
            i32 at = line + j * (THREADS / TILE);
            room.right[at][place] = b.at(row + first + at, column + place, depth);
        }
        __syncthreads();
        UNROLL_BY(2) for (i32 k = 0; k < SLICE; k++) {
            T left[OWN], right[OWN];
            UNROLL for (i32 i = 0; i < OWN; i++) {
                i32 own = down() * OWN + i;
                left[i] = TURNED ? room.tile[first + k][own] : room.tile[own][first + k];
                right[i] = room.right[k][across() * OWN + i];
            }
            UNROLL for (i32 i = 0; i < OWN; i++) UNROLL for (i32 j = 0; j < OWN; j++)
                sums.at[i][j] = fused(left[i], right[j], sums.at[i][j]);
        }
    }
}

// Over the threads of one row.
template <class T> DEVICE T row_sum(T x) {
    UNROLL for (i32 apart = SIDE / 2; apart > 0; apart /= 2) x += __shfl_xor_sync(0xffffffffu, x, apart);
    return x;
}
template <class T> DEVICE T row_max(T x) {
    UNROLL for (i32 apart = SIDE / 2; apart > 0; apart /= 2) {
        T other = __shfl_xor_sync(0xffffffffu, x, apart);
        x = other > x ? other : x;
    }
    return x;
}

template <class T> DEVICE void into_tile(Room<T> &room, const Part<T> &part) {
    const i32 OWN = Own<T>::COUNT;
    __syncthreads();
    UNROLL for (i32 i = 0; i < OWN; i++) UNROLL for (i32 j = 0; j < OWN; j++)
        room.tile[down() * OWN + i][across() * OWN + j] = part.at[i][j];
}

// One head of a sample: its rows of queries and of keys.
template <class T> struct Head {
    const Attention &a;
    i64 sample, head;
    DEVICE_IN Rows<T> queries(const void *of) const {
        i64 first = sample * a.q_steps.batch + head * a.q_steps.head;
        return {{of, a.narrow, first}, a.q_steps.position, a.queries};
    }
    DEVICE_IN Rows<T> keys(const void *of) const {
        i64 group = head / (a.heads / a.groups);
        i64 first = sample * a.k_steps.batch + group * a.k_steps.head;
        return {{of, a.narrow, first}, a.k_steps.position, a.keys};
    }
    DEVICE_IN i64 statistic(i64 query) const { return (sample * a.heads + head) * a.queries + query; }

    // Brings what a mask adds to the products of queries and keys, from these on, into the room's tile.
    DEVICE_IN void bring_mask(Room<T> &room, i64 query, i64 key, i32 rows, i32 columns) const {
        const i32 TILE = Room<T>::TILE;
        i64 first = sample * a.mask_steps[0] + head * a.mask_steps[1];
        UNROLL_BY(1) for (i32 at = (i32)threadIdx.x; at < TILE * TILE; at += THREADS) {
            i32 row = at / TILE, column = at % TILE;
            if (row >= rows || column >= columns) continue;
            i64 from = first + (query + row) * a.mask_steps[2] + (key + column) * a.mask_steps[3];
            if (a.mask == ADDED) {
                room.tile[row][column] = From<T>{a.masked, a.narrow, 0}[from];
            } else {
                room.tile[row][column] = ((const u8 *)a.masked)[from] != 0 ? T(0) : -infinity<T>();
            }
        }
    }

    // Of products of queries and keys, from these on, makes what the softmax is of: −∞ where a key is not seen.
    DEVICE_IN void score(Room<T> &room, i64 query, i64 key, Part<T> &part) const {
            const i32 OWN = Own<T>::COUNT, TILE = SIDE * OWN;
        i32 rows = (i32)least(a.queries - query, TILE), columns = (i32)least(a.keys - key, TILE);
        // a query sees so many keys of the tile more than its place in it
        i32 more = a.mask == CAUSAL ? (i32)least(query - key, TILE) : TILE;
        bool given = a.mask >= ADDED;
        T scale = (T)a.scale;
        if (given) {
            __syncthreads();
            bring_mask(room, query, key, rows, columns);
            __syncthreads();
        }
        UNROLL for (i32 i = 0; i < OWN; i++) UNROLL for (i32 j = 0; j < OWN; j++) {
            i32 row = down() * OWN + i, column = across() * OWN + j;
            bool seen = row < rows && column < columns && column <= row + more;
            T s = scale * part.at[i][j];
            if (given) s += room.tile[row][column];
            part.at[i][j] = seen ? s : -infinity<T>();
        }
    }

    // Writes a part of a tile of results.
    DEVICE_IN void put(Room<T> &room, const Into<T> &to, i64 step, i64 rows, i64 row, i64 column,
                       const Part<T> &part) const {
        const i32 TILE = Room<T>::TILE;
        into_tile(room, part);
        __syncthreads();
        UNROLL_BY(1) for (i32 i = (i32)threadIdx.x; i < TILE * TILE; i += THREADS) {
            i64 at = row + i / TILE, place = column + i % TILE;
            if (at < rows && place < a.depth) to.put(at * step + place, room.tile[i / TILE][i % TILE]);
        }
    }
};

// What a block does: a tile of rows of one head, and as many columns of the results.
struct Job {
    i64 sample, head, row, column;
};

DEVICE Job job_of(i64 heads, i64 rows, i64 depth, i32 tile) {
    i64 at = blockIdx.x, columns = (depth + tile - 1) / tile, down = (rows + tile - 1) / tile;
    Job job;
    job.column = at % columns * tile;
    at /= columns;
    job.row = at % down * tile;
    at /= down;
    job.head = at % heads;
    job.sample = at / heads;
    return job;
}

template <class T> DEVICE void attention(const Attention &a) {
    const i32 OWN = Own<T>::COUNT, TILE = SIDE * OWN;
    SHARED(Room<T>, room);
    Job job = job_of(a.heads, a.queries, a.depth, TILE);
    Head<T> head = {a, job.sample, job.head};
    Rows<T> q = head.queries(a.q), k = head.keys(a.k), v = head.keys(a.v);
    T most[OWN], total[OWN];
    Part<T> y, scores;
    y.clear();
    UNROLL for (i32 i = 0; i < OWN; i++) {
        most[i] = -infinity<T>();
        total[i] = T(0);
    }
    i64 end = a.mask == CAUSAL ? least(job.row + TILE, a.keys) : a.keys;
    UNROLL_BY(1) for (i64 key = 0; key < end; key += TILE) {
        rows_by_rows(room, q, job.row, k, key, a.depth, scores);
        head.score(room, job.row, key, scores);
        UNROLL for (i32 i = 0; i < OWN; i++) {
            T now = most[i], sum = T(0);
            UNROLL for (i32 j = 0; j < OWN; j++) now = scores.at[i][j] > now ? scores.at[i][j] : now;
            now = row_max(now);
            // where nothing is seen yet, nothing is subtracted
            T level = now == -infinity<T>() ? T(0) : now;
            UNROLL for (i32 j = 0; j < OWN; j++) {
                scores.at[i][j] = exp_of(scores.at[i][j] - level);
                sum += scores.at[i][j];
            }
            T rest = most[i] == -infinity<T>() ? T(0) : exp_of(most[i] - level);
            total[i] = total[i] * rest + row_sum(sum);
            most[i] = now;
            UNROLL for (i32 j = 0; j < OWN; j++) y.at[i][j] *= rest;
        }
        into_tile(room, scores);
        tile_by_rows<T, false>(room, v, key, job.column, a.depth, y);
    }
    UNROLL for (i32 i = 0; i < OWN; i++) {
        bool sees = most[i] != -infinity<T>();
        i64 query = job.row + down() * OWN + i;
        UNROLL for (i32 j = 0; j < OWN; j++) y.at[i][j] = sees ? y.at[i][j] / total[i] : T(0);
        if (query < a.queries && job.column == 0 && across() == 0)
            ((T *)a.lse)[head.statistic(query)] = sees ? most[i] + log_of(total[i]) : most[i];
    }
    i64 first = job.sample * a.q_steps.batch + job.head * a.q_steps.head;
    head.put(room, {a.y, a.narrow, first}, a.q_steps.position, a.queries, job.row, job.column, y);
}
OF_REALS(BLOCK_KERNEL_OF, attention, Attention)

// Σ dy∘y of each query, by a warp.
template <class T> DEVICE void attention_level(const Attention &a) {
    i64 count = a.batch * a.heads * a.queries;
    UNROLL_BY(1) for (i64 at = ByWarp::first(); at < count; at += ByWarp::step()) {
        i64 query = at % a.queries, head = at / a.queries % a.heads, sample = at / a.queries / a.heads;
        i64 row = sample * a.q_steps.batch + head * a.q_steps.head + query * a.q_steps.position;
        T sum = T(0);
        UNROLL_BY(2) for (i64 i = lane(); i < a.depth; i += WARP)
            sum += From<T>{a.dy, a.narrow, row}[i] * From<T>{a.y, a.narrow, row}[i];
        sum = warp_sum(sum);
        if (lane() == 0) ((T *)a.level)[at] = sum;
    }
}
OF_REALS(BLOCK_KERNEL_OF, attention_level, Attention)

// Of products of a tile P = e^(S − lse), 0 where a key is not seen.
template <class T> DEVICE void probabilities(const Head<T> &head, Room<T> &room, i64 query, i64 key, Part<T> &p) {
    const i32 OWN = Own<T>::COUNT;
    head.score(room, query, key, p);
    UNROLL for (i32 i = 0; i < OWN; i++) {
        i64 row = query + down() * OWN + i;
        T lse = row < head.a.queries ? ((const T *)head.a.lse)[head.statistic(row)] : T(0);
        UNROLL for (i32 j = 0; j < OWN; j++)
            p.at[i][j] = p.at[i][j] == -infinity<T>() ? T(0) : exp_of(p.at[i][j] - lse);
    }
}

// dS = scale·P∘(dP − level), in place of dP.
template <class T>
DEVICE void slopes(const Head<T> &head, i64 query, const Part<T> &p, Part<T> &dp) {
    const i32 OWN = Own<T>::COUNT;
    UNROLL for (i32 i = 0; i < OWN; i++) {
        i64 row = query + down() * OWN + i;
        T level = row < head.a.queries ? ((const T *)head.a.level)[head.statistic(row)] : T(0);
        UNROLL for (i32 j = 0; j < OWN; j++) {
            // what is not seen has no slope, whatever stands there
            bool seen = p.at[i][j] != T(0);
            dp.at[i][j] = seen ? (T)head.a.scale * (p.at[i][j] * (dp.at[i][j] - level)) : T(0);
        }
    }
}

// dk and dv of a tile of keys: over the queries of all heads that share them.
template <class T> DEVICE void attention_grad_keys(const Attention &a) {
    const i32 TILE = SIDE * Own<T>::COUNT;
    SHARED(Room<T>, room);
    Job job = job_of(a.groups, a.keys, a.depth, TILE);
    i64 many = a.heads / a.groups;
    Part<T> dk, dv, p, products;
    dk.clear();
    dv.clear();
    UNROLL_BY(1) for (i64 member = 0; member < many; member++) {
        Head<T> head = {a, job.sample, job.head * many + member};
        Rows<T> q = head.queries(a.q), dy = head.queries(a.dy), k = head.keys(a.k), v = head.keys(a.v);
        // queries before the keys do not see them
        UNROLL_BY(1) for (i64 query = a.mask == CAUSAL ? job.row : 0; query < a.queries; query += TILE) {
            rows_by_rows(room, q, query, k, job.row, a.depth, p);
            probabilities(head, room, query, job.row, p);
            into_tile(room, p);
            tile_by_rows<T, true>(room, dy, query, job.column, a.depth, dv);
            rows_by_rows(room, dy, query, v, job.row, a.depth, products);
            slopes(head, query, p, products);
            into_tile(room, products);
            tile_by_rows<T, true>(room, q, query, job.column, a.depth, dk);
        }
    }
    Head<T> head = {a, job.sample, job.head * many};
    i64 first = job.sample * a.k_steps.batch + job.head * a.k_steps.head;
    head.put(room, {a.dk, a.narrow, first}, a.k_steps.position, a.keys, job.row, job.column, dk);
    head.put(room, {a.dv, a.narrow, first}, a.k_steps.position, a.keys, job.row, job.column, dv);
}
OF_REALS(BLOCK_KERNEL_OF, attention_grad_keys, Attention)

template <class T> DEVICE void attention_grad_queries(const Attention &a) {
    const i32 TILE = SIDE * Own<T>::COUNT;
    SHARED(Room<T>, room);
    Job job = job_of(a.heads, a.queries, a.depth, TILE);
    Head<T> head = {a, job.sample, job.head};
    Rows<T> q = head.queries(a.q), dy = head.queries(a.dy), k = head.keys(a.k), v = head.keys(a.v);
    Part<T> dq, p, products;
    dq.clear();
    i64 end = a.mask == CAUSAL ? least(job.row + TILE, a.keys) : a.keys;
    UNROLL_BY(1) for (i64 key = 0; key < end; key += TILE) {
        rows_by_rows(room, q, job.row, k, key, a.depth, p);
        probabilities(head, room, job.row, key, p);
        rows_by_rows(room, dy, job.row, v, key, a.depth, products);
        slopes(head, job.row, p, products);
        into_tile(room, products);
        tile_by_rows<T, false>(room, k, key, job.column, a.depth, dq);
    }
    i64 first = job.sample * a.q_steps.batch + job.head * a.q_steps.head;
    head.put(room, {a.dq, a.narrow, first}, a.q_steps.position, a.queries, job.row, job.column, dq);
}
OF_REALS(BLOCK_KERNEL_OF, attention_grad_queries, Attention)

// By how much each pair of elements turns at each position: [positions, half] cosines, and as many sines behind them.
struct Angles {
    i64 positions;
    i64 half;
    i64 offset;
    double base;
    i64 inverse;
    void *turns;
};

template <class T> DEVICE void rotary_angles(const Angles &a) {
    i64 count = a.positions * a.half;
    UNROLL_BY(1) for (i64 i = thread_in_grid(); i < count; i += threads_of_grid()) {
        i64 position = i / a.half, pair = i % a.half;
        double frequency = pow_of(a.base, -2.0 * (double)pair / (double)(2 * a.half));
        double angle = (double)(position + a.offset) * frequency;
        if (a.inverse) angle = -angle;
        ((T *)a.turns)[i] = (T)cos(angle);
        ((T *)a.turns)[count + i] = (T)sin(angle);
    }
}
KERNEL_OF(rotary_angles, f32, Angles, float)
KERNEL_OF(rotary_angles, f64, Angles, double)

// Element i of a row turns together with element i + half.
struct Rotary {
    i64 rows;
    i64 half;
    i64 positions;
    // rows of one position that follow each other
    i64 heads;
    i64 narrow;
    const void *turns;
    const void *x;
    void *y;
};

template <class T> DEVICE void rotary(const Rotary &a) {
    UNROLL_BY(1) for (i64 i = thread_in_grid(); i < a.rows * a.half; i += threads_of_grid()) {
        i64 row = i / a.half, pair = i % a.half, position = row / a.heads % a.positions;
        i64 turn = position * a.half + pair, at = row * 2 * a.half + pair;
        T cosine = ((const T *)a.turns)[turn], sine = ((const T *)a.turns)[a.positions * a.half + turn];
        T first = From<T>{a.x, a.narrow, 0}[at], second = From<T>{a.x, a.narrow, 0}[at + a.half];
        Into<T>{a.y, a.narrow, 0}.put(at, first * cosine - second * sine);
        Into<T>{a.y, a.narrow, 0}.put(at + a.half, second * cosine + first * sine);
    }
}
OF_REALS(KERNEL_OF, rotary, Rotary)
