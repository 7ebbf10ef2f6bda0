//! Decoders that are public as they are.

use std::collections::BTreeMap;

use tensorwire_import::{ImportedModel, Module};
use tensorwire_nn::Schedule;
use tensorwire_report::{Line, report};
use tensorwire_tensor::{DType, Dim, Fact, Symbol, TensorSpec};

/// A module of PyTorch as JSON, which is built with its gradients if it can be.
pub(crate) fn modules(bytes: &[u8]) {
    let Ok(module) = serde_json::from_slice::<Module>(bytes) else { return };
    let text = serde_json::to_string(&module).expect("what was read is written");
    let again: Module = serde_json::from_str(&text).expect("what was written is read");
    assert_eq!(serde_json::to_string(&again).expect("as before"), text);
    let none: [(&str, safetensors::tensor::TensorView<'_>); 0] = [];
    let constants = safetensors::serialize(none, None).expect("nothing has no size");
    let model = ImportedModel::new(module, &constants);
    if let Err(error) = model.and_then(|model| model.check(DType::F32)) {
        assert!(!error.to_string().is_empty());
    }
}

/// A curve of the learning rate, as a user writes it.
pub(crate) fn schedules(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(schedule) = text.parse::<Schedule>() else { return };
    assert_eq!(schedule.to_string().parse().ok(), Some(schedule));
    for (step, steps) in [(1, 1), (1, u64::MAX), (u64::MAX, u64::MAX), (3, 7)] {
        // a rate may grow beyond all numbers, which training says then
        assert!(schedule.factor(step, steps) >= 0.0, "{schedule} at step {step} of {steps}");
    }
}

/// Measurements, and the page that is made of them.
pub(crate) fn lines(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(lines) = Line::read_all("f", text) else { return };
    if let Ok(report) = report(&lines) {
        assert!(report.left_out.iter().map(|it| it.count).sum::<usize>() <= lines.len());
    }
}

/// An element type and dimensions, each of 8 bytes.
pub(crate) fn specs(bytes: &[u8]) {
    let Some((code, dims)) = bytes.split_first() else { return };
    let Some(dtype) = DType::from_code(*code) else { return };
    let dims: Vec<usize> =
        dims.as_chunks().0.iter().map(|dim| u64::from_le_bytes(*dim) as usize).collect();
    let known = Fact::known(dtype, &dims);
    match TensorSpec::new(dtype, &dims) {
        Ok(spec) => {
            assert!(isize::try_from(spec.bytes()).is_ok());
            assert_eq!(spec.elements() * dtype.bytes(), spec.bytes());
            assert_eq!(known.spec(), Some(Ok(spec.clone())));
            assert_eq!(Fact::from(&spec), known);
        }
        Err(error) => assert_eq!(known.spec(), Some(Err(error))),
    }
    let names: BTreeMap<usize, u32> = dims.iter().copied().zip(0..).collect();
    let dims = dims.iter().map(|size| Dim::Dynamic(Symbol(names[size]))).collect::<Vec<_>>();
    assert_eq!(Fact { dtype, dims: dims.clone() }.spec().is_none(), !dims.is_empty());
}
