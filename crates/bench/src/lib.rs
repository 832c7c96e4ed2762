//! prove: figures beside their floors
