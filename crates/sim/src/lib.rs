//! prove: a whole cluster from one seed
