//! prove: stamped payloads, history, oracle, audit
