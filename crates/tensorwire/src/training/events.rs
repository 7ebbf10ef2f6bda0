//! What TensorBoard shows of a job.

use std::path::Path;

use tensorwire_train::{EventFile, EventFileError, FinishedStep, Summary};

/// The event file of a job, if there is to be one. What it cannot take does not end the job.
pub(super) struct Events {
    file: Option<EventFile>,
    failure: Option<EventFileError>,
}

impl Events {
    pub(super) fn create(folder: Option<&Path>) -> Result<Events, EventFileError> {
        Ok(Events { file: folder.map(EventFile::create).transpose()?, failure: None })
    }

    pub(super) fn step(&mut self, step: &FinishedStep) {
        let Some(file) = &mut self.file else { return };
        if let Err(failure) = file.step(step) {
            self.failure.get_or_insert(failure);
        }
    }

    pub(super) fn end(&mut self, summary: &Summary) -> Result<(), EventFileError> {
        let written = self.file.as_mut().map_or(Ok(()), |file| file.summary(summary));
        self.failure.take().map_or(written, Err)
    }
}
