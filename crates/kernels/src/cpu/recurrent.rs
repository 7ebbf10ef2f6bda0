//! The recurrent cells.

use super::Cpu;
use crate::launch::recurrent::{Given, GradGiven, GradMade, Made, Recurrences, Steps};
use crate::real::Real;
use crate::reference::Reference;

impl Recurrences for Cpu {
    fn recurrent<T: Real>(&self, steps: &Steps, given: Given<'_, T>, made: Made<'_, T>) {
        Reference.recurrent(steps, given, made);
    }

    fn recurrent_grad<T: Real>(
        &self,
        steps: &Steps,
        given: GradGiven<'_, T>,
        made: GradMade<'_, T>,
    ) {
        Reference.recurrent_grad(steps, given, made);
    }
}
