//! What each request waits for, to report a hang.

use std::fmt::Write as _;

use super::Queue;

impl Queue {
    /// What each request without an answer waits for, one line each.
    pub fn describe(&self) -> String {
        let mut text = format!(
            "{} requests, {} answers to take, {} chunks with workers\n",
            self.requests.in_use(),
            self.done.len(),
            self.offloads.count
        );
        for (index, request) in self.requests.iter() {
            // Writing to a string cannot fail.
            let _ =
                write!(text, "{}: {:?} of bytes {:?}", request.tag, request.kind, request.range);
            if self.parked.contains(&index) {
                let _ = write!(text, " waits for its range, {:?}", request.mode);
            }
            for (part, asked) in self.machine_requests.iter().enumerate() {
                let Some(id) = self.machine.request_at(part) else { continue };
                if asked.client == index {
                    let _ = write!(text, "\n  {:?}: {}", asked.role, self.machine.describe(id));
                }
            }
            text.push('\n');
        }
        text
    }
}
