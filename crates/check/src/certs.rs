//! Certificates for tests: a CA of one's own, and what it or somebody else signed.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, IsCa, KeyPair,
    date_time_ymd,
};

/// A CA that exists for one test.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authority")
    }
}

/// A certificate and its key, in PEM.
#[derive(Clone, Debug)]
pub struct Issued {
    /// The certificate.
    pub cert: String,
    /// Its key.
    pub key: String,
}

impl Default for Authority {
    fn default() -> Self {
        let mut params = plain(&[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, key()).expect("a key of ours signs");
        Self(issuer)
    }
}

impl Authority {
    /// Its own certificate, in PEM.
    pub fn cert(&self) -> String {
        self.0.pem()
    }

    /// A certificate for these DNS names, good for decades.
    pub fn issue(&self, names: &[&str]) -> Issued {
        self.sign(&plain(names))
    }

    /// One that ended years ago.
    pub fn issue_expired(&self, names: &[&str]) -> Issued {
        let mut params = plain(names);
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(2002, 1, 1);
        self.sign(&params)
    }

    fn sign(&self, params: &CertificateParams) -> Issued {
        let key = key();
        let cert = params.signed_by(&key, &self.0).expect("the CA signs");
        Issued { cert: cert.pem(), key: key.serialize_pem() }
    }
}

fn plain(names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).expect("plain DNS names");
    params.distinguished_name = DistinguishedName::new();
    params
}

fn key() -> KeyPair {
    KeyPair::generate().expect("the kernel has random numbers")
}
