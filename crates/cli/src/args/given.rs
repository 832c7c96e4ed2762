//! The flags that are settings, as they were given.

use super::{
    Arguments, Bench, ClientFlags, Command, CredentialFlags, Drain, ElectionFlags, Get, Ls,
    MasterFlags, MooncakeMaster, MooncakeNode, NodeFlags, Put, Quota, Rm, ServerFlags, Stat, Top,
    Undrain,
};
use crate::config::Given;

/// Collects the flags that are settings.
#[derive(Debug, Default)]
struct Flags(Vec<Given>);

impl Flags {
    fn text(&mut self, flag: &'static str, key: &'static str, value: Option<&String>) {
        if let Some(value) = value {
            self.0.push(Given { flag, key, value: value.clone() });
        }
    }

    fn switch(&mut self, flag: &'static str, key: &'static str, given: bool, means: bool) {
        if given {
            self.0.push(Given { flag, key, value: means.to_string() });
        }
    }

    fn master(&mut self, flags: &MasterFlags) {
        self.text("--admin", "admin", flags.admin.as_ref());
        self.text("--grpc", "grpc", flags.grpc.as_ref());
        self.text("--state-file", "state_file", flags.state_file.as_ref());
        self.text("--workers", "workers", flags.workers.as_ref());
        self.text("--put-timeout", "put_timeout", flags.put_timeout.as_ref());
        self.text("--lease-ttl", "lease_ttl", flags.lease_ttl.as_ref());
        self.text("--evict-policy", "evict_policy", flags.evict_policy.as_ref());
        self.text("--evict-above", "evict_above", flags.evict_above.as_ref());
        self.text("--evict-to", "evict_to", flags.evict_to.as_ref());
        self.text("--placement", "placement", flags.placement.as_ref());
        self.text("--offload", "offload", flags.offload.as_ref());
        self.text("--offload-above", "offload_above", flags.offload_above.as_ref());
        self.switch("--no-promote", "promote", flags.no_promote, false);
        self.text("--promote-reads", "promote_reads", flags.promote_reads.as_ref());
    }

    fn mooncake_master(&mut self, flags: &MooncakeMaster) {
        self.switch("--mooncake-http", "mooncake_http", flags.mooncake_http, true);
        self.switch("--mooncake-quotas", "mooncake_quotas", flags.mooncake_quotas, true);
        let metadata = flags.mooncake_metadata.as_ref();
        self.text("--mooncake-metadata", "mooncake_metadata", metadata);
        self.text("--mooncake-root", "mooncake_root", flags.mooncake_root.as_ref());
    }

    fn mooncake_node(&mut self, flags: &MooncakeNode) {
        self.switch("--mooncake-http", "mooncake_http", flags.mooncake_http, true);
        self.text("--mooncake-door", "mooncake_door", flags.mooncake_door.as_ref());
        self.text("--mooncake-tenant", "mooncake_tenant", flags.mooncake_tenant.as_ref());
    }

    fn election(&mut self, flags: &ElectionFlags) {
        self.text("--etcd", "etcd", flags.etcd.as_ref());
        self.text("--etcd-prefix", "etcd_prefix", flags.etcd_prefix.as_ref());
        self.text("--name", "name", flags.name.as_ref());
        self.text("--advertise", "advertise", flags.advertise.as_ref());
        self.text("--election-ttl", "election_ttl", flags.election_ttl.as_ref());
    }

    fn node(&mut self, flags: &NodeFlags) {
        self.text("--data", "data", flags.data.as_ref());
        self.text("--unix", "unix", flags.unix.as_ref());
        self.text("--segment-size", "segment_size", flags.segment_size.as_ref());
        self.text("--slots", "slots", flags.slots.as_ref());
        self.switch("--huge-pages", "huge_pages", flags.huge_pages, true);
        let overcommit = flags.memory_overcommit;
        self.switch("--memory-overcommit", "memory_overcommit", overcommit, true);
        self.switch("--prefault", "prefault", flags.prefault, true);
        let gpus = (!flags.vram.is_empty()).then(|| flags.vram.join(","));
        self.text("--vram", "vram", gpus.as_ref());
        let disks = (!flags.ssd.is_empty()).then(|| flags.ssd.join(";"));
        self.text("--ssd", "ssd", disks.as_ref());
        self.text("--staging-size", "staging_size", flags.staging_size.as_ref());
        let writes = flags.ssd_writes_per_day.as_ref();
        self.text("--ssd-writes-per-day", "ssd_writes_per_day", writes);
        self.text("--scrub-rate", "scrub_rate", flags.scrub_rate.as_ref());
        self.text("--node-name", "node_name", flags.node_name.as_ref());
        self.text("--host", "host", flags.host.as_ref());
        self.text("--zone", "zone", flags.zone.as_ref());
        self.text("--drain-on-stop", "drain_on_stop", flags.drain_on_stop.as_ref());
        self.text("--tenant", "tenant", flags.tenant.as_ref());
        self.text("--share-users", "share_users", flags.share_users.as_ref());
    }

    fn credentials(&mut self, flags: &CredentialFlags) {
        self.text("--token-file", "token_file", flags.token_file.as_ref());
        self.text("--tls-cert", "tls_cert", flags.tls_cert.as_ref());
        self.text("--tls-key", "tls_key", flags.tls_key.as_ref());
        self.text("--tls-ca", "tls_ca", flags.tls_ca.as_ref());
    }

    fn server(&mut self, flags: &ServerFlags) {
        self.switch("--insecure-listen", "insecure_listen", flags.insecure_listen, true);
        self.text("--metrics-listen", "metrics_listen", flags.metrics_listen.as_ref());
    }

    fn client(&mut self, flags: &ClientFlags) {
        self.text("--master", "master", flags.there.master.as_ref());
        self.text("--deadline", "deadline", flags.deadline.as_ref());
        self.switch("--no-shared-memory", "shared_memory", flags.no_shared_memory, false);
    }
}

impl Arguments {
    /// The flags that are settings.
    pub(crate) fn given(&self) -> Vec<Given> {
        let mut flags = Flags::default();
        flags.text("--log", "log", self.common.log.as_ref());
        flags.credentials(&self.common.credentials);
        match &self.command {
            Command::Serve(serve) => {
                flags.text("--master", "master", serve.here.master.as_ref());
                flags.master(&serve.master);
                flags.mooncake_master(&serve.mooncake);
                flags.node(&serve.node);
                flags.server(&serve.server);
            }
            Command::Master(alone) => {
                flags.text("--master", "master", alone.here.master.as_ref());
                flags.master(&alone.master);
                flags.mooncake_master(&alone.mooncake);
                flags.election(&alone.election);
                flags.server(&alone.server);
            }
            Command::Node(alone) => {
                flags.text("--master", "master", alone.there.master.as_ref());
                flags.text("--node-admin", "node_admin", alone.node_admin.as_ref());
                flags.node(&alone.node);
                flags.mooncake_node(&alone.mooncake);
                flags.server(&alone.server);
            }
            Command::Put(Put { client, .. })
            | Command::Get(Get { client, .. })
            | Command::Rm(Rm { client, .. })
            | Command::Ls(Ls { client, .. })
            | Command::Stat(Stat { client, .. })
            | Command::Top(Top { client, .. })
            | Command::Quota(Quota { client, .. })
            | Command::Drain(Drain { client, .. })
            | Command::Undrain(Undrain { client, .. })
            | Command::Bench(Bench { client, .. }) => flags.client(client),
            Command::Doctor(_) | Command::Replay(_) | Command::Token(_) => {}
        }
        flags.0
    }
}
