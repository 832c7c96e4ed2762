//! `token`: the cluster's secret, and what is derived from it. Needs no cluster.

use crate::args::TokenAction;
use crate::config::Settings;
use crate::failure::Failure;
use crate::render::Output;
use mooncrate::{ClusterSecret, Token};

/// Prints one token and nothing else, so that it can go straight into a file.
pub(crate) fn run(action: &TokenAction, settings: &Settings, out: Output) -> Result<(), Failure> {
    match action {
        TokenAction::New => {
            let secret = ClusterSecret::generate()
                .map_err(|error| Failure::failed(format!("no random numbers: {error}")))?;
            out.token(&Token::Cluster(secret))
        }
        TokenAction::Derive { role, tenant } => {
            let Some(path) = &settings.credentials.token_file else {
                let message = "a token is made from the cluster's secret, which --token-file names";
                let hint = "`umask 077; mooncrate token new > cluster.token` makes one";
                return Err(Failure::usage(message).hint(hint));
            };
            let token = Token::read(path).map_err(|error| Failure::usage(error.to_string()))?;
            let Some(secret) = token.secret() else {
                let message = format!("{} holds a derived token", path.display());
                return Err(Failure::usage(message).hint("name the file of the cluster's secret"));
            };
            let token = secret.derive(*role, tenant);
            out.token(&token.map_err(|error| Failure::usage(error.to_string()))?)
        }
    }
}
