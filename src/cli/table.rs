//! A table of text with aligned columns.

/// A table with a header. Each column is as wide as its widest cell.
pub(super) struct TextTable {
    rows: Vec<Vec<String>>,
}

impl TextTable {
    pub(super) fn new<const N: usize>(head: [&str; N]) -> Self {
        Self { rows: vec![head.map(str::to_owned).to_vec()] }
    }

    pub(super) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }
}

impl std::fmt::Display for TextTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let width =
            |i: usize| self.rows.iter().filter_map(|row| row.get(i)).map(|cell| cell.chars().count()).max();
        let widths: Vec<usize> = (0..columns).map(|i| width(i).unwrap_or_default()).collect();
        for (i, row) in self.rows.iter().enumerate() {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
            let line = cells.collect::<Vec<_>>().join("  ");
            write!(f, "{}{}", if i == 0 { "" } else { "\n" }, line.trim_end())?;
        }
        Ok(())
    }
}
