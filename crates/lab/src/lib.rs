//! Measurements, records and the report.
