//! Splitting work over threads. Where work is cut depends on its size alone; whether the pieces then
//! run on one thread or on several changes no result.

use rayon::prelude::*;

/// Elements in one piece of element-wise work: 128 KiB of f32, so that three operands' pieces lie in
/// a core's L2 cache, and far more work than handing a piece over costs (a few µs).
pub(super) const CHUNK: usize = 1 << 15;

/// Least elements of element-wise work that is worth waking threads for: two pieces.
const PARALLEL_MIN: usize = 2 * CHUNK;

/// The threads of one back end; none of its own where it may use one thread only.
#[derive(Debug)]
pub(super) struct Pool {
    workers: Option<rayon::ThreadPool>,
}

/// What is done with two pieces of one number.
type OnPair<'a, T, U> = dyn Fn(usize, &mut [T], &mut [U]) + Sync + 'a;

impl Pool {
    /// A pool of `threads`. Where the system has no more threads to give, the caller's alone.
    pub(super) fn new(threads: usize) -> Pool {
        if threads <= 1 {
            return Pool { workers: None };
        }
        let built = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|i| format!("kernels-{i}"))
            .build();
        Pool { workers: built.ok() }
    }

    /// The thread that asks.
    pub(super) const fn callers() -> Pool {
        Pool { workers: None }
    }

    pub(super) fn threads(&self) -> usize {
        self.workers.as_ref().map_or(1, rayon::ThreadPool::current_num_threads)
    }

    /// Runs `body` on one of the threads: work that it hands to the pool again and again finds them awake.
    pub(super) fn inside<R: Send>(&self, parallel: bool, body: impl FnOnce() -> R + Send) -> R {
        match &self.workers {
            Some(workers) if parallel => workers.install(body),
            _ => body(),
        }
    }

    /// Runs `body` for every index, on all threads where `parallel`, in no order.
    pub(super) fn each_index(
        &self,
        count: usize,
        parallel: bool,
        body: impl Fn(usize) + Send + Sync,
    ) {
        self.indices(count, parallel, &body);
    }

    /// `body` of every index, in the order of the indices.
    pub(super) fn map_indices<R: Send>(
        &self,
        count: usize,
        parallel: bool,
        body: impl Fn(usize) -> R + Send + Sync,
    ) -> Vec<R> {
        let mut results = Vec::new();
        results.resize_with(count, || None);
        let keep = |i: usize, result: &mut [Option<R>]| result[0] = Some(body(i));
        self.pieces(&mut results, 1, parallel, 1, &keep);
        results.into_iter().flatten().collect()
    }

    /// What `body` makes of every piece of `chunk` elements of `y`, in the order of the pieces.
    pub(super) fn map_chunks<T: Send, R: Send>(
        &self,
        y: &mut [T],
        chunk: usize,
        body: impl Fn(usize, &mut [T]) -> R + Send + Sync,
    ) -> Vec<R> {
        let mut results = Vec::new();
        results.resize_with(y.len().div_ceil(chunk), || None);
        let parallel = y.len() > chunk;
        let keep = |piece: usize, y: &mut [T], result: &mut [Option<R>]| {
            result[0] = Some(body(piece * chunk, y));
        };
        self.pairs(y, &mut results, [chunk, 1], parallel, &keep);
        results.into_iter().flatten().collect()
    }

    /// Gives `body` every piece of `y`, with the index of the piece's first element.
    pub(super) fn each_chunk<T: Send>(
        &self,
        y: &mut [T],
        body: impl Fn(usize, &mut [T]) + Send + Sync,
    ) {
        self.each_chunk_of(y, CHUNK, body);
    }

    /// As [`Pool::each_chunk`], with pieces of `chunk` elements.
    pub(super) fn each_chunk_of<T: Send>(
        &self,
        y: &mut [T],
        chunk: usize,
        body: impl Fn(usize, &mut [T]) + Send + Sync,
    ) {
        let parallel = y.len() >= PARALLEL_MIN;
        self.split(y, chunk, parallel, body);
    }

    /// Gives `body` every piece of `chunk` elements of `y`, on all threads where `parallel`.
    pub(super) fn split<T: Send>(
        &self,
        y: &mut [T],
        chunk: usize,
        parallel: bool,
        body: impl Fn(usize, &mut [T]) + Send + Sync,
    ) {
        self.pieces(y, chunk, parallel, usize::MAX, &|i, y| body(i * chunk, y));
    }

    /// Gives `body` every item, on all threads where there are several.
    pub(super) fn each_of<I: Send>(&self, items: Vec<I>, body: impl Fn(I) + Send + Sync) {
        let mut items: Vec<Option<I>> = items.into_iter().map(Some).collect();
        let take = |_: usize, item: &mut [Option<I>]| item[0].take().into_iter().for_each(&body);
        self.pieces(&mut items, 1, true, 1, &take);
    }

    /// As [`Pool::split`], over two slices, cut in as many pieces of `chunks` elements.
    pub(super) fn split_pair<T: Send, U: Send>(
        &self,
        y: &mut [T],
        z: &mut [U],
        chunks: [usize; 2],
        parallel: bool,
        body: impl Fn(usize, &mut [T], &mut [U]) + Send + Sync,
    ) {
        self.pairs(y, z, chunks, parallel, &body);
    }

    // What follows knows its callers' code by reference: rayon's is then compiled once for each type of element
    // and not for each kernel, at every vector level. A call costs nothing beside a piece of work.

    fn indices(&self, count: usize, parallel: bool, body: &(dyn Fn(usize) + Sync)) {
        match &self.workers {
            Some(workers) if parallel && count > 1 => {
                workers.install(|| (0..count).into_par_iter().with_max_len(1).for_each(body));
            }
            _ => (0..count).for_each(body),
        }
    }

    /// Gives `body` every piece of `chunk` elements with its number; a thread takes at most so many at a time.
    fn pieces<T: Send>(
        &self,
        y: &mut [T],
        chunk: usize,
        parallel: bool,
        at_a_time: usize,
        body: &(dyn Fn(usize, &mut [T]) + Sync),
    ) {
        let numbered = |(i, y): (usize, &mut [T])| body(i, y);
        match &self.workers {
            Some(workers) if parallel && y.len() > chunk => {
                let pieces = y.par_chunks_mut(chunk).enumerate().with_max_len(at_a_time);
                workers.install(|| pieces.for_each(numbered));
            }
            _ => y.chunks_mut(chunk).enumerate().for_each(numbered),
        }
    }

    /// Gives `body` every two pieces, of `chunks` elements, with their number.
    fn pairs<T: Send, U: Send>(
        &self,
        y: &mut [T],
        z: &mut [U],
        chunks: [usize; 2],
        parallel: bool,
        body: &OnPair<'_, T, U>,
    ) {
        let numbered = |(i, (y, z)): (usize, (&mut [T], &mut [U]))| body(i, y, z);
        match &self.workers {
            Some(workers) if parallel && y.len() > chunks[0] => {
                let pieces = y.par_chunks_mut(chunks[0]).zip(z.par_chunks_mut(chunks[1]));
                workers.install(|| pieces.enumerate().for_each(numbered));
            }
            _ => {
                let pieces = y.chunks_mut(chunks[0]).zip(z.chunks_mut(chunks[1]));
                pieces.enumerate().for_each(numbered);
            }
        }
    }
}
