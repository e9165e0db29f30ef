//! The endpoints between which `underpass advise --check` measures: those of a survey, reached or made again.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::anyhow;
use underpass_lab::advise::Rank;
use underpass_lab::evidence::{Evidence, Survey};
use underpass_lab::record::Skipped;
use underpass_lab::survey::again::Again;
use underpass_lab::survey::endpoints::Endpoints;
use underpass_lab::survey::local::Local;

use crate::failure::Failure;
use crate::{survey, sys};

/// Endpoints of a survey that are there again.
pub struct Site {
    /// The name of the survey.
    pub survey: String,
    /// Their agents.
    pub again: Again,
}

/// The endpoints of the newest survey that can be measured between again, and why others cannot: those that `file`
/// names, or those of `survey --local`.
///
/// # Errors
/// The file cannot be used, is of no survey, or its endpoints are not all there as they were.
pub fn again(evidence: &Evidence, file: Option<&Path>) -> Result<(Option<Site>, Vec<Skipped>), Failure> {
    sys::ignore_broken_pipes();
    let mut surveys: Vec<&Survey> = evidence.surveys.iter().collect();
    // As the advice prefers them.
    surveys.sort_by(|one, other| Rank::of_survey(other).cmp(&Rank::of_survey(one)));
    let named = file.map(Endpoints::read).transpose()?;
    let is_meant = |survey: &&Survey| match &named {
        Some(file) => {
            let names = |all: &mut dyn Iterator<Item = &String>| all.cloned().collect::<BTreeSet<String>>();
            let of_file = names(&mut file.endpoints.iter().map(|it| &it.name));
            of_file == names(&mut survey.record.head.endpoints.iter().map(|it| &it.name))
        }
        None => Local::are(&survey.record.head.endpoints),
    };
    let meant = surveys.iter().copied().find(is_meant);
    let mut skipped: Vec<Skipped> = surveys
        .iter()
        .filter(|it| meant.is_none_or(|meant| meant.name != it.name))
        .map(|it| {
            let reason = "one survey is checked at a time; name its endpoints with --endpoints ENDPOINTS".to_string();
            Skipped { name: format!("endpoints of {}", it.name), reason }
        })
        .collect();
    let site = match (meant, &named) {
        (Some(survey), Some(file)) => {
            let (token, places) = (survey::token(file)?, file.endpoints.clone());
            let connect = move |index: usize| survey::reach(&places[index], &token);
            let again = Again::meet(&survey.record.head, &file.endpoints, Box::new(connect))?;
            Some(Site { survey: survey.name.clone(), again })
        }
        (None, Some(_)) => {
            return Err(anyhow!("no survey among the records is between the endpoints that --endpoints names").into());
        }
        (Some(survey), None) => match made_again(survey) {
            Ok(site) => Some(site),
            Err(error) => {
                skipped.push(Skipped { name: format!("endpoints of {}", survey.name), reason: format!("{error:#}") });
                None
            }
        },
        (None, None) => None,
    };
    Ok((site, skipped))
}

fn made_again(survey: &Survey) -> anyhow::Result<Site> {
    let (local, own) = (Local::new(None)?, survey::own()?);
    let places = local.places().to_vec();
    // What holds the endpoints goes with what connects to them.
    let connect = move |index: usize| local.connect(index, survey::agent(&own, &local, index));
    let again = Again::meet(&survey.record.head, &places, Box::new(connect))?;
    Ok(Site { survey: survey.name.clone(), again })
}
