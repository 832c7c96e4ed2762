//! run: the mooncrate command and the embedded store
