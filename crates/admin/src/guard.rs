//! Who may look: this machine, and nobody through it.
//!
//! What must stay true: a request is refused unless it comes from a loopback address **and** names
//! this machine as its host **and** was not sent by a web page of another origin. The first keeps
//! other machines out even if the socket is bound wrongly; the second defeats a web page that points
//! its own name at 127.0.0.1; the third one that sends a request to 127.0.0.1 by its number.

use crate::Refused;
use axum::Router;
use axum::extract::{ConnectInfo, Request};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use std::net::{IpAddr, SocketAddr};

/// The routes, behind the guard.
pub fn window(routes: Router) -> Router {
    routes.layer(from_fn(only_this_machine))
}

async fn only_this_machine(
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    match judge(peer.ip(), request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(why) => Refused(StatusCode::FORBIDDEN, why.to_owned()).into_response(),
    }
}

fn judge(peer: IpAddr, uri: &Uri, headers: &HeaderMap) -> Result<(), &'static str> {
    if !peer.to_canonical().is_loopback() {
        return Err("this is served to its own machine; connect to a loopback address");
    }
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    // A request may name its host in its first line as well, as proxies are asked (`:authority` in HTTP/2).
    let named = [text(header::HOST), uri.authority().map(Authority::as_str)];
    if !named.into_iter().flatten().all(is_this_machine) {
        return Err("this is served under localhost or a loopback address, under no other name");
    }
    // Browsers say so when a page asks; other programs have no reason to.
    let foreign_page = text(header::ORIGIN).is_some_and(|origin| !is_own_origin(origin));
    let cross_site = headers.get("sec-fetch-site").is_some_and(|site| site == "cross-site");
    if foreign_page || cross_site {
        return Err("this is not served to web pages of other sites");
    }
    Ok(())
}

fn is_own_origin(origin: &str) -> bool {
    let host = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    host.is_some_and(is_this_machine)
}

fn is_this_machine(host: &str) -> bool {
    let port = |rest: &str| rest.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
    let name = match host.rfind(':') {
        Some(at) if port(&host[at..]) => &host[..at],
        _ => host,
    };
    let number = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || number.parse::<IpAddr>().is_ok_and(|number| number.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.insert(*name, value.parse().unwrap());
        }
        headers
    }

    fn here() -> Uri {
        Uri::from_static("/v1/keys")
    }

    #[test]
    fn security_a_host_in_the_first_line_is_judged_like_the_header() {
        for plain in [headers(&[("host", "localhost:7412")]), headers(&[])] {
            let own = Uri::from_static("http://127.0.0.1:7412/v1/keys");
            assert_eq!(judge(HERE, &own, &plain), Ok(()));
            let rebound = Uri::from_static("http://evil.example:7412/v1/keys");
            assert!(judge(HERE, &rebound, &plain).unwrap_err().contains("no other name"));
        }
    }

    #[test]
    fn names_of_this_machine_are_known() {
        for host in ["localhost", "LOCALHOST:80", "127.0.0.1", "127.0.0.1:7412", "[::1]", "[::1]:9"]
        {
            assert!(is_this_machine(host), "{host}");
        }
        for host in
            ["", "localhost.evil.example", "10.0.0.1:80", "evil:localhost", "127.0.0.1.nip.io"]
        {
            assert!(!is_this_machine(host), "{host}");
        }
    }

    #[test]
    fn a_request_must_come_from_here_in_every_respect() {
        let plain = headers(&[("host", "127.0.0.1:7412")]);
        assert_eq!(judge(HERE, &here(), &plain), Ok(()));
        assert_eq!(judge("::ffff:127.0.0.1".parse().unwrap(), &here(), &plain), Ok(()));
        for far in ["192.0.2.7", "10.0.0.1", "::ffff:192.0.2.7", "2001:db8::1"] {
            let refused = judge(far.parse().unwrap(), &here(), &plain);
            assert!(refused.unwrap_err().contains("own machine"), "{far}");
        }
        let rebound = headers(&[("host", "evil.example:7412")]);
        assert!(judge(HERE, &here(), &rebound).unwrap_err().contains("no other name"));
        let unreadable = {
            let mut headers = HeaderMap::new();
            headers.insert("host", axum::http::HeaderValue::from_bytes(b"\xff").unwrap());
            headers
        };
        assert!(
            judge(HERE, &here(), &unreadable).is_err(),
            "a host that is no text is no local name"
        );
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
        let own = headers(&[("host", "localhost:7412"), ("origin", "http://localhost:7412")]);
        assert_eq!(judge(HERE, &here(), &own), Ok(()));
        for (name, value) in [
            ("origin", "https://evil.example"),
            ("origin", "null"),
            ("sec-fetch-site", "cross-site"),
        ] {
            let page = headers(&[("host", "127.0.0.1:7412"), (name, value)]);
            assert!(
                judge(HERE, &here(), &page).unwrap_err().contains("web pages"),
                "{name}: {value}"
            );
        }
    }
}
