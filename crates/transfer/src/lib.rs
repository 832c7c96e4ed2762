//! move: read, write and signal over memcpy, shared memory and TCP
