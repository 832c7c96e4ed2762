//! index: gives the catalog a clock and a socket
