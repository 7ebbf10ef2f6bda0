// Rows that are added at their indices: those of one index in their order, a rank's before the next one's. Where an index is
// named first, all of its rows are added, along links from each to the next.
#include "rule.cuh"

// One rank's indices and rows, in a table in memory.
struct Rank {
    const i32 *indices;
    const void *rows;
    // its first place among those of all ranks, which end where the next one's begin
    i64 first;
};

// Writes words of a table.
struct WriteWords {
    u64 *to;
    i64 count;
    u64 words[60];
};

KERNEL(write_words, WriteWords) {
    UNROLL_BY(1) for (i64 i = thread_in_grid(); i < a.count; i += threads_of_grid()) a.to[i] = a.words[i];
}

// For every place among the indices of all ranks the next place of the same index: 0 where there is none, and −1 more
// than what it would be where an earlier place has the index, too. A place counts from 1 there.
struct LinkRows {
    i64 ranks;
    // one more than ranks, the last one for its first place
    const Rank *table;
    i64 rows;
    i64 *links;
    Fault *fault;
    // of rank r this and r more
    u64 code;
};

// The rank that has this place.
DEVICE i64 rank_of(const Rank *table, i64 place) {
    i64 rank = 0;
    UNROLL_BY(1) while (table[rank + 1].first <= place) rank++;
    return rank;
}

DEVICE i32 index_at(const Rank *table, i64 place) {
    const Rank &rank = table[rank_of(table, place)];
    return rank.indices[place - rank.first];
}

BLOCK_KERNEL(link_rows, LinkRows) {
    i64 count = a.table[a.ranks].first;
    UNROLL_BY(1) for (i64 own = ByWarp::first(); own < count; own += ByWarp::step()) {
        i64 rank = rank_of(a.table, own);
        i32 index = index_at(a.table, own);
        if (index < 0 || index >= a.rows) {
            if (lane() == 0) {
                report(a.fault, a.code + (u64)rank, own - a.table[rank].first, index);
                a.links[own] = -1;
            }
            continue;
        }
        bool earlier = false;
        UNROLL_BY(1) for (i64 first = 0; first < own && !earlier; first += WARP) {
            i64 at = first + lane();
            earlier = __ballot_sync(0xffffffffu, at < own && index_at(a.table, least(at, own)) == index) != 0;
        }
        i64 next = 0;
        UNROLL_BY(1) for (i64 first = own + 1; first < count && next == 0; first += WARP) {
            i64 at = first + lane();
            u32 same = __ballot_sync(0xffffffffu, at < count && index_at(a.table, least(at, count - 1)) == index);
            if (same != 0) next = first + __ffs((i32)same);
        }
        if (lane() == 0) a.links[own] = earlier ? -1 - next : next;
    }
}

// The place behind this one, counted from 1; 0 where there is none.
DEVICE i64 next_of(i64 link) { return link < 0 ? -1 - link : link; }

// y ← y with the rows of one rank added.
struct AddRows {
    i64 columns;
    i64 narrow;
    const Rank *table;
    const i64 *links;
    void *y;
};

template <class T> DEVICE void add_rows(const AddRows &a) {
    const Rank &rank = a.table[0];
    From<T> rows = {rank.rows, a.narrow, 0}, y = {a.y, a.narrow, 0};
    i64 count = a.table[1].first * a.columns;
    UNROLL_BY(1) for (i64 i = thread_in_grid(); i < count; i += threads_of_grid()) {
        i64 place = i / a.columns, column = i % a.columns, link = a.links[place];
        if (link < 0) continue;
        i64 at = (i64)rank.indices[place] * a.columns + column;
        T sum = y[at];
        UNROLL_BY(1) for (;;) {
            sum += rows[place * a.columns + column];
            if (link == 0) break;
            place = link - 1;
            link = next_of(a.links[place]);
        }
        Into<T>{a.y, a.narrow, 0}.put(at, sum);
    }
}
OF_REALS(KERNEL_OF, add_rows, AddRows)

struct ApplyRows {
    i64 columns;
    i64 narrow;
    i64 ranks;
    const Rank *table;
    const i64 *links;
    void *v;
    void *slot;
    void *other;
    Rule rule;
};

template <class T> DEVICE void apply_rows(const ApplyRows &a) {
    Numbers<T> by(a.rule);
    T share = T(1) / T((double)a.ranks);
    i64 count = a.table[a.ranks].first * a.columns;
    UNROLL_BY(1) for (i64 i = thread_in_grid(); i < count; i += threads_of_grid()) {
        i64 place = i / a.columns, column = i % a.columns, link = a.links[place];
        if (link < 0) continue;
        i64 index = index_at(a.table, place);
        // each rank's rows by themselves first
        T sum = T(0), own = T(0);
        bool has_sum = false, has_own = false;
        i64 rank = rank_of(a.table, place);
        UNROLL_BY(1) for (;;) {
            i64 from = (place - a.table[rank].first) * a.columns + column;
            T row = From<T>{a.table[rank].rows, a.narrow, 0}[from];
            own = has_own ? own + row : row;
            has_own = true;
            i64 next = link == 0 ? -1 : rank_of(a.table, link - 1);
            if (next != rank) {
                sum = has_sum ? sum + own : own;
                has_sum = true;
                has_own = false;
            }
            if (link == 0) break;
            place = link - 1;
            rank = next;
            link = next_of(a.links[place]);
        }
        i64 at = index * a.columns + column;
        T now = From<T>{a.v, a.narrow, 0}[at];
        Into<T>{a.v, a.narrow, 0}.put(at, moved(by, now, sum * share, (T *)a.slot, (T *)a.other, at));
    }
}
OF_REALS(KERNEL_OF, apply_rows, ApplyRows)
