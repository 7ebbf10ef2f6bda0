//! Rows that are added at their indices, which the device checks and links: those of one index in their order.

use tensorwire_graph::{Op, Rule};
use tensorwire_kernels::Operand;

use super::updates;
use crate::builder::{Builder, THREADS, WARP, arguments, is_narrow};
use crate::command::{Address, KernelArgument};
use crate::error::LowerError;
use crate::fault::Check;
use crate::kernels;

/// Words that one launch of `write_words` writes.
const WORDS_MAX: usize = 60;

/// One rank's indices and rows.
struct Rank {
    indices: Address,
    rows: Address,
    count: usize,
    /// The indices, by the operator's own count of inputs.
    operand: Operand,
}

/// The table of ranks and the links between places.
struct Linked {
    table: Address,
    links: Address,
    /// Places of all ranks.
    places: usize,
}

pub(super) fn lower(builder: &mut Builder<'_>) -> Result<(), LowerError> {
    // of ScatterRows the rows come first, of AddRows what they are added to
    let (rows, indices) = match builder.op {
        Op::ScatterRows => (0, 1),
        _ => (1, 2),
    };
    let spec = &builder.outputs[0];
    let y = builder.output(0);
    match builder.op {
        Op::ScatterRows => builder.zero(y, spec.bytes()),
        _ => builder.copy(builder.input(0), y, spec.bytes()),
    }
    let rank = Rank {
        indices: builder.input(indices),
        rows: builder.input(rows),
        count: builder.inputs[indices].elements(),
        operand: Operand::Input(indices),
    };
    let linked = link(builder, &[rank])?;
    let columns = spec.dims()[1];
    let kernel = builder.of_reals(kernels::ADD_ROWS, spec.dtype)?;
    let Linked { table, links, places } = linked;
    builder.spread(
        kernel,
        places * columns,
        arguments![columns, is_narrow(spec.dtype), table, links, y],
    );
    Ok(())
}

pub(super) fn apply_rows(builder: &mut Builder<'_>, rule: Rule) -> Result<(), LowerError> {
    let pairs = builder.inputs.len() / 2;
    let rank = |rank: usize| Rank {
        indices: builder.input(2 * rank),
        rows: builder.input(2 * rank + 1),
        count: builder.inputs[2 * rank].elements(),
        operand: Operand::Input(2 * rank),
    };
    let ranks: Vec<Rank> = (0..pairs).map(rank).collect();
    let linked = link(builder, &ranks)?;
    let spec = &builder.outputs[0];
    let columns = spec.dims()[1];
    let kernel = builder.of_reals(kernels::APPLY_ROWS, spec.dtype)?;
    let rule = updates::rule_fields(builder, rule)?;
    let [v, slot, other] = updates::state(builder);
    let Linked { table, links, places } = linked;
    let fields = arguments![columns, is_narrow(spec.dtype), pairs, table, links, v, slot, other];
    builder.spread(kernel, places * columns, [fields, rule].concat());
    Ok(())
}

/// Writes the table, checks the indices and links their places.
fn link(builder: &mut Builder<'_>, ranks: &[Rank]) -> Result<Linked, LowerError> {
    let (op, rows) = (builder.name(), builder.outputs[0].dims()[0]);
    let words = 3 * (ranks.len() + 1);
    let table = builder.workspace(words, 8)?;
    let (mut all, mut first, mut code) = (Vec::with_capacity(words), 0, KernelArgument::Nothing);
    for (at, rank) in ranks.iter().enumerate() {
        all.extend(arguments![rank.indices, rank.rows, first]);
        first += rank.count;
        // the codes of the others follow
        let check = builder.check(Check::Index { op, operand: rank.operand, rows });
        code = if at == 0 { check } else { code };
    }
    all.extend(arguments![KernelArgument::Nothing, KernelArgument::Nothing, first]);
    for (at, words) in all.chunks(WORDS_MAX).enumerate() {
        let mut fields = arguments![table.behind(8 * WORDS_MAX * at), words.len()];
        fields.extend_from_slice(words);
        fields.resize(2 + WORDS_MAX, KernelArgument::Nothing);
        builder.spread(kernels::WRITE_WORDS, words.len(), fields);
    }
    let links = builder.workspace(first, 8)?;
    let fields = arguments![ranks.len(), table, rows, links, KernelArgument::Fault, code];
    builder.spread_blocks(kernels::LINK_ROWS, first.div_ceil(THREADS / WARP), fields);
    Ok(Linked { table, links, places: first })
}
