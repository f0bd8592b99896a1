//! The terminal while `top` has it: another screen, no echo, keys as they are typed. It is as before
//! when this ends, however it ends.

use std::io;

use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};

use crate::background::columns;
use crate::stdio::Stdout;

/// To the other screen, without a cursor and without wrapping; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

/// The size of a terminal that does not tell it.
const SIZE: (u16, u16) = (80, 24);

pub(super) struct Screen {
    /// `None` after [`Screen::leave`].
    before: Option<Termios>,
}

impl Screen {
    pub(super) fn enter() -> io::Result<Self> {
        let terminal = rustix::stdio::stdin();
        let before = tcgetattr(terminal)?;
        let mut keys = before.clone();
        keys.local_modes -=
            LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG | LocalModes::IEXTEN;
        keys.special_codes[SpecialCodeIndex::VMIN] = 1;
        keys.special_codes[SpecialCodeIndex::VTIME] = 0;
        let screen = Self { before: Some(before) };
        tcsetattr(terminal, OptionalActions::Now, &keys)?;
        write(ENTER)?;
        Ok(screen)
    }

    /// Columns and lines.
    pub(super) fn size() -> (u16, u16) {
        match tcgetwinsize(rustix::stdio::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col, size.ws_row),
            _ => SIZE,
        }
    }

    /// Shows these lines: as many as the screen has, and none longer than it is wide.
    pub(super) fn draw(lines: &[String], width: u16) -> io::Result<()> {
        // Every place is written, so that nothing has to be cleared and nothing flickers.
        let fill = |line: &String| {
            let space = usize::from(width).saturating_sub(columns(line));
            format!("{line}{}", " ".repeat(space))
        };
        let shown: Vec<_> = lines.iter().map(fill).collect();
        write(&format!("\x1b[H{}", shown.join("\r\n")))
    }

    /// Gives the terminal back.
    pub(super) fn leave(&mut self) {
        let Some(before) = self.before.take() else { return };
        // Nothing better can be done if the terminal is gone.
        let _ = write(LEAVE);
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Flush, &before);
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.leave();
    }
}

fn write(text: &str) -> io::Result<()> {
    let stdout = Stdout::get().map_err(|failure| io::Error::other(failure.message));
    io::Write::write_all(&mut stdout?, text.as_bytes())
}
