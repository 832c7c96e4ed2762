//! prove: layer and tidiness checks over the tree
