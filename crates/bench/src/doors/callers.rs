//! Whoever has a credential: connects, proves it, asks one thing, hangs up.

use super::Port;
use crate::servers::Server;
use anyhow::{Context, Result, ensure};
use mooncrate::{Address, ClusterSecret};
use mooncrate_grpc::pb;
use mooncrate_grpc::pb::master_service_client::MasterServiceClient;
use mooncrate_wire::auth::Token;
use mooncrate_wire::clock::boottime;
use mooncrate_wire::message::{Ping, Unpin};
use mooncrate_wire::{Access, DataRequest, Hello, Link, LinkConfig, LinkKind, Request, Role};
use std::borrow::Cow;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;
use tonic::transport::Endpoint;

/// How many ports there are.
pub(super) const PORTS: usize = 5;
/// A call that takes longer has failed.
const CALL_TIME: Duration = Duration::from_secs(2);

/// What was called.
enum How {
    Frames(LinkKind),
    Grpc(tokio::runtime::Runtime),
    Http,
}

/// A caller of one port.
pub(super) struct Caller {
    how: How,
    address: Address,
    token: Arc<Token>,
}

/// What became of calls.
pub(super) struct Calls {
    pub(super) done: u32,
    pub(super) failed: u32,
    pub(super) worst: Duration,
}

/// The port with this number.
pub(super) fn port(at: usize, server: &Server, secret: &ClusterSecret) -> Result<Port> {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build();
    let (name, field, how) = match at {
        0 => ("control", "master", How::Frames(LinkKind::Control)),
        1 => ("data", "data", How::Frames(LinkKind::Data)),
        2 => ("unix", "unix", How::Frames(LinkKind::Data)),
        3 => ("grpc", "grpc", How::Grpc(runtime()?)),
        _ => ("admin", "admin", How::Http),
    };
    let said = server.said(field).with_context(|| format!("a server without {field}"))?;
    let text = match said.strip_prefix("http://") {
        Some(rest) => rest.to_owned(),
        None if said.starts_with('/') => format!("unix:{said}"),
        None => said.to_owned(),
    };
    let address = text.parse().map_err(anyhow::Error::msg)?;
    let token = Arc::new(secret.derive(Role::Client, "bench")?);
    Ok(Port { name, caller: Caller { how, address, token } })
}

impl Caller {
    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    /// How a conversation begins at this port, for those who do not go on with it.
    pub(super) fn first_bytes(&self) -> &'static [u8] {
        match self.how {
            How::Frames(_) => b"MCR1",
            How::Grpc(_) => b"PRI * HTTP/2.0\r\n",
            How::Http => b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-",
        }
    }

    /// Calls for so long.
    pub(super) fn call_for(&self, time: Duration) -> Calls {
        let until = boottime().deadline_in(time);
        let mut calls = Calls { done: 0, failed: 0, worst: Duration::ZERO };
        while !until.passed(boottime()) {
            let began = boottime();
            match self.call() {
                Ok(()) => calls.done += 1,
                Err(_) => calls.failed += 1,
            }
            calls.worst = calls.worst.max(boottime().since(began));
        }
        calls
    }

    fn call(&self) -> Result<()> {
        match &self.how {
            How::Frames(kind) => self.frames(*kind),
            How::Grpc(runtime) => {
                runtime.block_on(async { tokio::time::timeout(CALL_TIME, self.grpc()).await? })
            }
            How::Http => self.http(),
        }
    }

    fn frames(&self, kind: LinkKind) -> Result<()> {
        let access = Access { token: Some(Arc::clone(&self.token)), ..Access::default() };
        let config = LinkConfig { access, ..LinkConfig::default() };
        let deadline = boottime().deadline_in(CALL_TIME);
        let hello = Hello::new(Role::Client, kind, "bench");
        let mut link = Link::connect(&self.address, &hello, &config, deadline)?;
        match kind {
            LinkKind::Control => drop(link.call(&Request::Ping(Ping {}), deadline)?),
            LinkKind::Data => {
                let ask = DataRequest::Unpin(Unpin { ids: Cow::Borrowed(&[]) });
                link.call_data(&ask, &[], deadline)?;
            }
        }
        Ok(())
    }

    async fn grpc(&self) -> Result<()> {
        let channel = Endpoint::from_shared(format!("http://{}", self.address))?.connect().await?;
        let key = "absent".to_owned();
        let ask = pb::GetReplicaListRequest { key, ..pb::GetReplicaListRequest::default() };
        let mut request = tonic::Request::new(ask);
        let bearer = format!("Bearer {}", self.token.to_text()).parse()?;
        request.metadata_mut().insert("authorization", bearer);
        MasterServiceClient::new(channel).get_replica_list(request).await?;
        Ok(())
    }

    /// Looking asks for no token, so this caller is as much a stranger as the flood.
    fn http(&self) -> Result<()> {
        let mut stream = TcpStream::connect(self.address.to_string())?;
        stream.set_read_timeout(Some(CALL_TIME))?;
        let ask = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(ask.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        ensure!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        Ok(())
    }
}
