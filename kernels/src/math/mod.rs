//! The functions of the vector unit, built from correctly rounded operations alone.
