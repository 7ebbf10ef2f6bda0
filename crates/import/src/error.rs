//! Why a module cannot be imported: the operator, where it stands in the module's source, and what to do.

use std::fmt;

use crate::module::{ModuleNode, SourcePlace};
use crate::table;

/// The result type of an import.
pub type Result<T, E = ImportError> = std::result::Result<T, E>;

/// Why a module is no model here.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// No row of the table has the operator.
    #[error("{0}: this operator is not known; {instead}", instead = table::instead(&.0.operator))]
    Unknown(Box<CallSite>),
    /// The operator is known, and not in this use.
    #[error("{site}: {reason}")]
    Refused { site: Box<CallSite>, reason: String },
    /// Our graph refuses it.
    #[error("{site}: {source}")]
    Graph { site: Box<CallSite>, source: Box<tensorwire_nn::Error> },
    /// The description contradicts itself: whoever wrote it is wrong.
    #[error("the description of the module: {0}")]
    Description(String),
    /// The constants are no safetensors.
    #[error("the constants of the module are no safetensors: {0}")]
    Constants(safetensors::SafeTensorError),
    /// It cannot be trained: no gradient, a parameter without a part in the loss.
    #[error(transparent)]
    Model(#[from] tensorwire_nn::Error),
}

/// A call that cannot be: of which operator, and where it stands in the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallSite {
    pub operator: String,
    pub place: SourcePlace,
}

impl CallSite {
    pub(crate) fn of(node: &ModuleNode) -> Box<CallSite> {
        Box::new(CallSite { operator: node.operator.clone(), place: node.place.clone() })
    }
}

impl fmt::Display for CallSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.operator, self.place)
    }
}

impl ImportError {
    /// A use of a known operator that cannot be.
    pub(crate) fn refused(node: &ModuleNode, reason: impl Into<String>) -> ImportError {
        ImportError::Refused { site: CallSite::of(node), reason: reason.into() }
    }
}

impl From<ImportError> for tensorwire_nn::Error {
    fn from(error: ImportError) -> tensorwire_nn::Error {
        match error {
            ImportError::Model(error) => error,
            error => tensorwire_nn::Error::other(error),
        }
    }
}
