//! ask: put, get and the rest, with verified reads and cached locators
