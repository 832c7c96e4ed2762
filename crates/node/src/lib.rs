//! own: segments served to clients, orders of the master carried out
