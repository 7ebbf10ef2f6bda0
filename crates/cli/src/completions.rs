//! `tensorwire completions` and `tensorwire man`: what shells and manuals know of the command line.

use clap_mangen::Man;

use super::Failure;
use super::args::{CompletionsArgs, ManArgs};
use super::command_line::{Help, command};
use super::output::{note, print};

const PROGRAM: &str = "tensorwire";

pub(crate) fn completions(args: &CompletionsArgs) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command(Help::Long), PROGRAM, &mut script);
    print(String::from_utf8(script).map_err(Failure::other)?.trim_end())
}

pub(crate) fn man(args: &ManArgs) -> Result<(), Failure> {
    let mut command = command(Help::Long);
    let Some(folder) = &args.out else {
        let mut page = Vec::new();
        command.build();
        Man::new(command).render(&mut page).map_err(Failure::other)?;
        return print(String::from_utf8(page).map_err(Failure::other)?.trim_end());
    };
    let written =
        std::fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(command, folder));
    written.map_err(|error| {
        let folder = folder.display();
        Failure::user(format!(
            "cannot write manual pages to {folder}: {error}; choose a folder that may be written"
        ))
    })?;
    note(format_args!("manual pages written to {}", folder.display()));
    Ok(())
}
