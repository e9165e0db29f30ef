//! `underpass agent`: an endpoint of a survey.

use std::io::{stdin, stdout};
use std::net::TcpListener;

use anyhow::Context;
use underpass_lab::Launcher;
use underpass_lab::survey::agent::{Agent, Event};
use underpass_lab::survey::channel::ChannelError;
use underpass_lab::survey::token::Token;
use underpass_lab::survey::toolbox::{ArmError, Toolbox};

use crate::cli::AgentArguments;
use crate::failure::Failure;
use crate::{library, say, sys};

/// Serves coordinators until Ctrl-C, or the program that started this one.
pub fn agent(arguments: &AgentArguments) -> Result<(), Failure> {
    // A tool that ends early must not end the agent.
    sys::ignore_broken_pipes();
    let launcher = library::find().ok().and_then(|library| Launcher::new(&library, &[]).ok());
    let tools = arguments.arm.as_deref().map(Toolbox::arm).transpose()?.unwrap_or(Toolbox::system());
    let (first, last) = arguments.ports.unwrap_or_default();
    let ports = first..=last;
    if arguments.stdio {
        let agent = Agent { token: Token::none(), launcher, tools, ports };
        return Ok(agent.serve_starter(Box::new(stdin()), Box::new(stdout()))?);
    }
    Token::make(&arguments.token)?;
    let agent = Agent { token: Token::read(&arguments.token)?, launcher, tools, ports };
    let listener =
        TcpListener::bind(arguments.listen).with_context(|| format!("cannot listen at {}", arguments.listen))?;
    let at = listener.local_addr()?;
    if agent.launcher.is_none() || agent.tools.is_emulated() {
        say(format_args!("the library is not here for these tools, so nothing is measured under Underpass"));
    }
    Ok(agent.serve(&listener, &|event| match event {
        Event::Ready => say(format_args!("listening at {at}; the token is in {}", arguments.token.display())),
        Event::Coordinator(from) => say(format_args!("{from} is the coordinator")),
        Event::Gone(from) => say(format_args!("{from} is gone")),
        Event::Refused(from, error) => say(format_args!("{from} was turned away: {error}")),
    })?)
}

impl From<ArmError> for Failure {
    fn from(error: ArmError) -> Failure {
        Failure::Failed(error.into())
    }
}

impl From<ChannelError> for Failure {
    fn from(error: ChannelError) -> Failure {
        Failure::Failed(error.into())
    }
}
