//! speak: frames, messages, links and the two service interfaces
