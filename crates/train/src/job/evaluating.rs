//! What a process does of an evaluation, between two steps and in the end, where the weights are hashed and saved, too.

use std::time::Instant;

use tensorwire_graph::Output;
use tensorwire_nn::{Data, Filled, Mean, Program, TestBatches, Variable};
use tensorwire_runtime::Reading;

use super::TrainError;
use super::loader::Loader;
use super::trainer::Trainer;
use super::whereabouts::Phase;
use super::worker::Link;
use crate::origin::WeightsOrigin;
use crate::report::{Evaluation, TrainReport};
use crate::topology;
use crate::weights;

impl Trainer<'_> {
    /// Evaluates between two steps. Whoever may overwrite what is evaluated waits for this process's next step, or
    /// is asked by it. Servers that are a part of the graph, where all make the same steps, help ([`Trainer::help_to_look`]);
    /// each at its own pace they would overwrite it, so there it cannot be done.
    pub(super) fn look(
        &mut self,
        data: &Data,
        link: &mut dyn Link,
    ) -> Result<Evaluation, TrainError> {
        let is_other = link.show_evaluated(self.session)?;
        self.standing.enters(Phase::Runs);
        self.session.run(Program::FETCH)?;
        let evaluation = self.evaluate(data)?;
        if is_other {
            link.restore(self.session)?;
        }
        Ok(evaluation)
    }

    /// Does what this process has to do while worker 0 evaluates between two steps, if both are parts of one graph.
    pub(super) fn help_to_look(&mut self) -> Result<(), TrainError> {
        if self.config.topology().weights != topology::Weights::Servers {
            return Ok(());
        }
        self.standing.enters(Phase::Runs);
        self.session.run(Program::FETCH)?;
        self.help_to_evaluate()
    }

    /// Brings the variables to worker 0, which evaluates, hashes and saves them.
    pub(super) fn conclude(
        &mut self,
        data: Option<&Data>,
        report: &mut TrainReport,
    ) -> Result<(), TrainError> {
        let patience = self.shape.patience_behind_the_last(self.config, report.steps);
        self.session.set_step_deadline(patience);
        self.standing.enters(Phase::Runs);
        // without lanes the variables come to worker 0 of all, with lanes to each lane's own
        if self.concludes || !self.config.topology().plans_one_worker() {
            self.session.run(Program::FETCH)?;
        }
        if let Some(data) = data.filter(|_| self.concludes) {
            let begun = Instant::now();
            let evaluation = self.evaluate(data)?;
            report.test_seconds = begun.elapsed().as_secs_f64();
            self.standing.enters(Phase::Ends);
            (report.test_accuracy, report.test_loss) = (evaluation.accuracy(), evaluation.loss());
            report.metrics = evaluation.others();
            let weights = self.weights()?;
            let pairs = || weights.iter().map(|(variable, bytes)| (*variable, &**bytes));
            report.weights_sha256 = Some(weights::sha256(pairs()));
            if let Some(path) = &self.config.save {
                let names = data.train.class_names();
                let origin = WeightsOrigin::here(self.config, report.steps, names);
                weights::save(path, pairs(), &origin)?;
            }
        }
        if !self.concludes {
            self.help_to_evaluate()?;
        }
        self.report_copies(report);
        Ok(())
    }

    /// Computes what of the evaluation is placed here, where layers of the model are on tasks of their own.
    fn help_to_evaluate(&mut self) -> Result<(), TrainError> {
        let task = self.session.part().task;
        let here = self.plan.parts.iter().position(|part| part.task == task);
        let nodes = here.map(|here| &self.plan.runs[Program::EVALUATE.0].nodes[here]);
        if nodes.is_none_or(Vec::is_empty) || self.config.topology().is_asynchronous() {
            return Ok(());
        }
        for _ in 0..self.shape.test_batches {
            self.session.run(Program::EVALUATE)?;
        }
        Ok(())
    }

    /// What the model measures over the test's samples.
    fn evaluate(&mut self, data: &Data) -> Result<Evaluation, TrainError> {
        let Some(test) = &data.test else { return Ok(Evaluation::default()) };
        self.standing.enters(Phase::Evaluates);
        let batch = self.config.batch;
        let batches = TestBatches::new(test.clone(), batch).map_err(TrainError::TestBatch)?;
        let program = self.program;
        let mut means = vec![Mean::default(); program.metrics.len()];
        let mut loader = Loader::test(&batches, self.threads())?;
        for _ in 0..batches.len() {
            self.standing.enters(Phase::AwaitsTestBatch);
            let fed = loader.next(self.config.step_deadline());
            let fed = fed.map_err(TrainError::NoTestBatch)?.map_err(TrainError::TestBatch)?;
            self.standing.enters(Phase::Evaluates);
            self.feed(&program.evaluation, &fed)?;
            self.session.run(Program::EVALUATE)?;
            self.measure(&mut means, fed.filled)?;
        }
        let named = program.metrics.iter().zip(&means);
        let values = named.filter_map(|(metric, mean)| Some((metric.name.clone(), mean.value()?)));
        Ok(values.collect())
    }

    /// Adds a batch to what is measured.
    fn measure(&self, means: &mut [Mean], filled: Filled) -> Result<(), TrainError> {
        for (metric, mean) in self.program.metrics.iter().zip(means) {
            let (_, given) = self.session.read(self.session.node(&metric.node)?.into())?;
            metric.add(mean, &given, filled, self.config.batch);
        }
        Ok(())
    }

    /// What was evaluated of each variable, as it is here: its own value, or what the last fetch brought.
    fn weights(&self) -> Result<Vec<(&Variable, Reading<'_>)>, TrainError> {
        let mut weights = Vec::new();
        // whoever concludes is the plan's first part
        let part = 0;
        for variable in self.program.weights() {
            let name = self.program.evaluated_as(&variable.name);
            let fetched = self.plan.edges.iter().find(|edge| edge.to == part && edge.name == name);
            let output: Output = match fetched {
                Some(edge) => edge.recv.into(),
                None => self.session.node(&name)?.into(),
            };
            weights.push((variable, self.session.read(output)?.1));
        }
        Ok(weights)
    }
}
